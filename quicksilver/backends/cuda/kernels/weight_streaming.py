"""Reading weights at the memory's pace for few rows: a program owns a pair of column groups and a stretch of the depth.

The weights are the tall side of every product and the rows its narrow side. Where columns alone would leave
multiprocessors idle the depth is cut into splits; the program that arrives last adds the splits in their order, so who
it was changes no number. How the depth is cut depends on the weights' shape alone, never on the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_TILES = 2048
"""Column tiles of one linear."""
NARROW_GATES = 180
"""Tiles of 64 columns from which gate and up go in tiles of 32."""
MULTIPROCESSORS = 132
"""Of an H200."""
BUSY_PROGRAMS = 96
"""As many keep its memory busy."""
SHARED_BYTES = 232_448
"""Shared memory that the programs of a multiprocessor can have between them."""
_OTHER_BYTES = 7_448
"""What they take besides the weights and inputs that are under way."""
ROUNDED_DEPTH = 128
"""How much of an fp8 input is read at once, where it goes."""
GROUP_WORDS = 8
"""Of the 32 four-bit weights that have a step and a least value in common (`words.py`)."""
_GROUP_WORDS = tl.constexpr(GROUP_WORDS)
_LONGEST = 16
"""Products of fp8 by fp8, each of which is waited for, that a program does one after the other where depths are cut."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A program's share: `block_n` columns twice, `depth` of the input, `block_k` of it at once. Where inputs are fp8
    with a step for each `group` columns, `block_k` is a multiple of that."""

    block_n: int
    block_k: int
    depth: int
    num_warps: int = 4
    num_stages: int = 3
    group: int = 0

    def splits(self, k: int) -> int:
        return -(-k // self.depth)

    def is_even(self, k: int) -> bool:
        return k % self.block_k == 0 and self.depth % self.block_k == 0


@dataclass(frozen=True, slots=True)
class Parts:
    """Unfinished sums of the splits, and how many splits of a tile have arrived (zero between launches)."""

    sums: Tensor
    arrived: Tensor

    @classmethod
    def allocate(cls, num_floats: int, device: torch.device | str) -> Parts:
        arrived = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)
        return cls(torch.zeros(num_floats, device=device), arrived)


def pick_columns(half: int) -> int:
    """Columns of one group: wide enough for the matrix unit, and so many tiles that the chip is busy."""
    for block_n in (64, 32):
        if half % block_n == 0 and half // block_n >= 9:
            return block_n
    return 32 if half % 32 == 0 else 16


def pick_gate_columns(ffn: int) -> int:
    """Columns of gate and of up: where there are many tiles smaller ones share the chip out more evenly."""
    return 32 if ffn // 64 >= NARROW_GATES and ffn % 32 == 0 else pick_columns(ffn)


def pick_cut(block_n: int, num_tiles: int, k: int, num_rows: int, width: float = 2) -> Cut:
    """Splits while each has a multiprocessor of its own; `width` bytes a weight. Rows change how much of the depth is
    under way at once, not how it is cut or in which order anything is added."""
    splits = most_splits(num_tiles, 1)
    depth = _even_depth(k, splits, 128)
    if k % 128 or num_tiles * -(-k // depth) < BUSY_PROGRAMS:
        depth = min(max(_even_depth(k, splits, 64), 128), _even_depth(k, 1, 64))
    sizes = (128, 64) if k % 128 == 0 and depth % 128 == 0 else (64,)
    return _filled(Cut(block_n, 64, depth), sizes, num_tiles, k, num_rows, width)


def pick_rounded_cut(block_n: int, num_tiles: int, k: int, num_rows: int, group: int) -> Cut:
    """As `pick_cut` for fp8 inputs; long depths go in more splits, two or three of them on a multiprocessor."""
    at_once = max(group, ROUNDED_DEPTH)
    block_k = at_once if k % at_once == 0 else group
    depth = _even_depth(k, most_splits(num_tiles, -(-k // (_LONGEST * group))), block_k)
    sizes = (2 * block_k, block_k) if depth == k and k % (2 * block_k) == 0 else (block_k,)
    return _filled(Cut(block_n, block_k, depth, group=group), sizes, num_tiles, k, num_rows, 1)


def most_splits(num_tiles: int, stretches: int) -> int:
    """One for each multiprocessor that a tile has, or `stretches` where these are more; one where tiles are many."""
    share = MULTIPROCESSORS // num_tiles
    return max(share, stretches) if share > 1 else 1


def room_splits(num_tiles: int, k: int) -> int:
    """Room for as many must be there."""
    return most_splits(num_tiles, -(-k // (_LONGEST * 64)))


def _even_depth(k: int, splits: int, step: int) -> int:
    return -(-k // splits // step) * step


def _filled(cut: Cut, sizes: tuple[int, ...], num_tiles: int, k: int, num_rows: int, width: float) -> Cut:
    """The cut with the first of `sizes` as block of the depth of which three fit, or the last, and as many as fit."""
    found = cut
    for block_k in sizes:
        found = replace(cut, block_k=block_k)
        found = replace(found, num_stages=_stages(found, num_tiles, k, num_rows, width))
        if found.num_stages > 2:
            break
    return found


def _stages(cut: Cut, num_tiles: int, k: int, num_rows: int, width: float) -> int:
    """So many that all programs can be on the chip at once. One whose weights would all fit into shared memory has the
    whole of it, which measures better where launches overlap; of longer stretches half holds enough."""
    share = min(-(-num_tiles * cut.splits(k) // MULTIPROCESSORS), 3)
    if 2 * cut.block_n * cut.depth * width > SHARED_BYTES:
        share = max(share, 2)
    input_width = 1 if cut.group else max(width, 2)
    stage = int((2 * cut.block_n * width + num_rows * input_width) * cut.block_k)
    return max(2, min((SHARED_BYTES - _OTHER_BYTES) // share // stage, cut.depth // cut.block_k + 1, 12))


@triton.jit
def multiply(
    x, steps, w, first, second, K, begin, end,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, FP8: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Two (columns, rows) products over [begin, end) of the depth; `first` and `second` are rows of w, int64. With FP8
    x is rounded, with one of `steps`, (K / GROUP, rows), for each GROUP columns. Where w is words they are four weights
    each, and `steps` their groups."""
    if w.dtype.element_ty == tl.int16:
        return _multiply_fours(x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, EVEN)
    if FP8:
        return _multiply_rounded(
            x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, GROUP, GROUPS
        )  # fmt: skip
    m, k = tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    a = tl.zeros((BLOCK_N, ROWS), tl.float32)
    b = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for start in range(begin, end, BLOCK_K):
        at = start + k
        if EVEN:
            x_tile = tl.load(x + m[:, None] * K + at[None, :])
            w_first = tl.load(w + first[:, None] * K + at[None, :])
            w_second = tl.load(w + second[:, None] * K + at[None, :])
        else:
            is_in = (at < end)[None, :]
            x_tile = tl.load(x + m[:, None] * K + at[None, :], mask=is_in, other=0.0)
            w_first = tl.load(w + first[:, None] * K + at[None, :], mask=is_in, other=0.0)
            w_second = tl.load(w + second[:, None] * K + at[None, :], mask=is_in, other=0.0)
        a = tl.dot(w_first.to(x_tile.dtype), tl.trans(x_tile), a, input_precision="ieee")
        b = tl.dot(w_second.to(x_tile.dtype), tl.trans(x_tile), b, input_precision="ieee")
    return a, b


@triton.jit
def _both(first, second, BLOCK_N: tl.constexpr):
    """Two groups of columns as one that is twice as tall."""
    return tl.reshape(tl.permute(tl.join(first, second), (1, 0)), (2 * BLOCK_N,))


@triton.jit
def _apart(acc, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """Their sums, each for itself."""
    return tl.split(tl.permute(tl.reshape(acc, (2, BLOCK_N, ROWS)), (1, 2, 0)))


@triton.jit
def group_halves(group):
    """Groups of four-bit weights -> their steps and least values, fp16."""
    step = (group & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return step, (group >> 16).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _each_word(of_group, COLUMNS: tl.constexpr, GROUPS: tl.constexpr):
    """(columns, groups) -> (columns, words)."""
    wide = tl.broadcast_to(of_group[:, :, None], (COLUMNS, GROUPS, _GROUP_WORDS))
    return tl.reshape(wide, (COLUMNS, GROUPS * _GROUP_WORDS))


@triton.jit
def _read(at, is_in, EVEN: tl.constexpr):
    return tl.load(at) if EVEN else tl.load(at, mask=is_in, other=0)


@triton.jit
def _multiply_bits(acc, bits, step, least, x_tile):
    """Onto `acc`: bits are numbers as `words.py` says."""
    weight = bits.to(tl.float16, bitcast=True) * step + least
    return tl.dot(weight.to(x_tile.dtype), tl.trans(x_tile), acc, input_precision="ieee")


@triton.jit
def _multiply_fours(
    x, groups, w, first, second, K, begin, end,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Four products a step, one for each of the four weights of a word: the first eight columns of every group of the
    input, the next eight, and so on."""
    GROUPS: tl.constexpr = BLOCK_K // 32
    m, g, k = tl.arange(0, ROWS), tl.arange(0, GROUPS), tl.arange(0, BLOCK_K // 4)
    rows = _both(first, second, BLOCK_N)
    acc = tl.zeros((2 * BLOCK_N, ROWS), tl.float32)
    from_x = x + m[:, None] * K + (k // _GROUP_WORDS * 32 + k % _GROUP_WORDS)[None, :]
    from_w = w + rows[:, None] * (K // 4) + k[None, :]
    from_groups = groups + rows[:, None] * (K // 32) + g[None, :]
    for start in range(begin, end, BLOCK_K):
        is_in, is_group = (start + k * 4 < end)[None, :], (start + g * 32 < end)[None, :]
        word = _read(from_w + start // 4, is_in, EVEN)
        step, least = group_halves(_read(from_groups + start // 32, is_group, EVEN))
        step, least = _each_word(step, 2 * BLOCK_N, GROUPS), _each_word(least, 2 * BLOCK_N, GROUPS)
        further, later = step * 0.0625, word >> 8
        acc = _multiply_bits(acc, word & 0x0F, step, least, _read(from_x + start, is_in, EVEN))
        acc = _multiply_bits(acc, word & 0xF0, further, least, _read(from_x + start + 8, is_in, EVEN))
        acc = _multiply_bits(acc, later & 0x0F, step, least, _read(from_x + start + 16, is_in, EVEN))
        acc = _multiply_bits(acc, later & 0xF0, further, least, _read(from_x + start + 24, is_in, EVEN))
    return _apart(acc, BLOCK_N, ROWS)


@triton.jit
def _multiply_rounded(
    x, steps, w, first, second, K, begin, end,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Both products as one that is twice as tall: each is waited for before its step is applied, and a program has one
    wait at a time. All of its `GROUPS` steps or fewer are read before the loop, which then finds them in the
    first-level cache; there, they would be waited for as long as memory is busy with weights."""
    m, k = tl.arange(0, ROWS), tl.arange(0, GROUP)
    rows = _both(first, second, BLOCK_N)
    group = tl.minimum(begin // GROUP + tl.arange(0, GROUPS), end // GROUP - 1)
    lowest = tl.min(tl.min(tl.load(steps + group[:, None] * ROWS + m[None, :]), 1), 0)
    # Steps are positive, which the compiler does not know, or it would not read them here.
    acc = tl.zeros((2 * BLOCK_N, ROWS), tl.float32) + tl.where(lowest < 0, 1.0, 0.0)
    for start in range(begin, end, BLOCK_K):
        for part in tl.static_range(BLOCK_K // GROUP):
            at = start + part * GROUP + k
            x_tile = tl.load(x + m[:, None] * K + at[None, :])
            w_tile = tl.load(w + rows[:, None] * K + at[None, :])
            step = tl.load(steps + (start // GROUP + part) * ROWS + m)
            acc += tl.dot(w_tile, tl.trans(x_tile)) * step[None, :]
    return _apart(acc, BLOCK_N, ROWS)


@triton.jit
def leave_part(
    sums, arrived, a, b, tile, split,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr,
    FINISHERS: tl.constexpr,
):  # fmt: skip
    """Put this split's sums down -> the slices of rows, [begin, end), that this program has to finish: all of them
    for the one that comes last, or, with several finishers, an equal share for each of the last splits, once every
    split is there. Programs with lower numbers are on the chip before them, so that waiting keeps nobody off it."""
    m, n = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    at = sums + (tile * SPLITS + split) * (2 * BLOCK_N * ROWS) + m[None, :] * BLOCK_N + n[:, None]
    tl.store(at, a)
    tl.store(at + BLOCK_N * ROWS, b)
    tl.debug_barrier()  # every thread's sums are out before the one thread that counts announces them
    before = tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu")
    SHARE: tl.constexpr = ROWS // SLICE // FINISHERS
    if FINISHERS == 1:
        begin, end = 0, tl.where(before == SPLITS - 1, SHARE, 0)
    else:
        mine = split - (SPLITS - FINISHERS)
        begin, end = mine * SHARE, tl.where(mine >= 0, mine * SHARE + SHARE, mine * SHARE)
        if mine >= 0:
            while tl.load(arrived + tile, volatile=True) < SPLITS:
                pass
            tl.debug_barrier()
    return begin, end


@triton.jit
def own_rows(split, ROWS: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr, FINISHERS: tl.constexpr):
    """The rows that a program would finish: all where nothing is split, else the slice of this finisher."""
    if SPLITS == 1:
        rows = tl.arange(0, ROWS)
    else:  # not behind a return: the compiler wants one shape of all returns, taken or not
        rows = tl.maximum(split - (SPLITS - FINISHERS), 0) * SLICE + tl.arange(0, SLICE)
    return rows


@triton.jit
def add_parts(sums, m, tile, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """All splits of rows m in ascending order, past the first-level cache, which may hold what stood there before."""
    n = tl.arange(0, BLOCK_N)
    at = sums + tile * SPLITS * (2 * BLOCK_N * ROWS) + m[None, :] * BLOCK_N + n[:, None]
    a = tl.load(at, cache_modifier=".cg")
    b = tl.load(at + BLOCK_N * ROWS, cache_modifier=".cg")
    for split in tl.static_range(1, SPLITS):
        a += tl.load(at + split * (2 * BLOCK_N * ROWS), cache_modifier=".cg")
        b += tl.load(at + split * (2 * BLOCK_N * ROWS) + BLOCK_N * ROWS, cache_modifier=".cg")
    return a, b


@triton.jit
def clear_parts(arrived, tile, begin, end, SPLITS: tl.constexpr, FINISHERS: tl.constexpr):
    """The counter back to zero for the next launch, by the last who looks at it."""
    if end > begin:
        seen = SPLITS + FINISHERS - 1
        if FINISHERS > 1:
            seen = tl.atomic_add(arrived + tile, 1, sem="relaxed", scope="gpu")
        if seen == SPLITS + FINISHERS - 1:
            tl.store(arrived + tile, 0)


@triton.jit
def norm_divisor(squares, m, K, eps, TILES: tl.constexpr, ROWS: tl.constexpr):
    """The RMS norm's factor of each row, from the sums of squares that the tiles of the last linear left."""
    total = tl.load(squares + m)
    for tile in tl.static_range(1, TILES):
        total += tl.load(squares + tile * ROWS + m)
    return tl.rsqrt(total / K + eps)


@triton.jit
def low_part(
    item, x, steps, a, low, gate, ready, K, depth,
    ROWS: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """gate * (A x) for 16 of the ranks over one part of the depth; with FP8 x has a step for each `GROUP` columns. The
    part that comes last adds them all, in their order, into the first plane of `low` and counts these ranks as there,
    in the first number of `ready`."""
    part, group = item // (RANK // 16), item % (RANK // 16)
    m, k, n = tl.arange(0, ROWS), tl.arange(0, 64), group * 16 + tl.arange(0, 16)
    acc = tl.zeros((16, ROWS), tl.float32)
    end = tl.minimum(part * depth + depth, K)
    for start in range(part * depth, end, 64):
        at = start + k
        is_in = (at < end)[None, :]
        x_tile = tl.load(x + m[:, None] * K + at[None, :], mask=is_in, other=0.0)
        a_tile = tl.load(a + n[:, None] * K + at[None, :], mask=is_in, other=0.0)
        if FP8:
            step = tl.load(steps + start // GROUP * ROWS + m)
            acc += tl.dot(a_tile, tl.trans(x_tile.to(a_tile.dtype)), input_precision="ieee") * step[None, :]
        else:
            acc = tl.dot(a_tile.to(x_tile.dtype), tl.trans(x_tile), acc, input_precision="ieee")
    acc = acc * tl.load(gate + m).to(tl.float32)[None, :]
    total = low + m[None, :] * RANK + n[:, None]
    is_last = part >= 0
    if PARTS > 1:
        tl.store(total + (part + 1) * (ROWS * RANK), acc)
        tl.debug_barrier()  # every thread's sums are out before one thread announces them
        is_last = tl.atomic_add(ready + 1 + group, 1, sem="acq_rel", scope="gpu") == PARTS - 1
    if is_last:
        if PARTS > 1:
            acc = tl.load(total + ROWS * RANK, cache_modifier=".cg")
            for other in tl.static_range(2, PARTS + 1):
                acc += tl.load(total + other * (ROWS * RANK), cache_modifier=".cg")
        tl.store(total, acc)
        tl.debug_barrier()
        tl.atomic_add(ready, 1, sem="release", scope="gpu")


@triton.jit
def low_sum(low, ready, m, RANK: tl.constexpr):
    """The gated A x, (rows, rank), once all ranks of it are there. Those who make it are the first programs of the
    launch, so that waiting for them cannot keep them off the chip."""
    while tl.load(ready, volatile=True) < RANK // 16:
        pass
    tl.debug_barrier()
    return tl.load(low + m[:, None] * RANK + tl.arange(0, RANK)[None, :], cache_modifier=".cg")


@triton.jit
def low_rank(t, b, n, RANK: tl.constexpr):
    """B (gated A x) for columns n, (columns, rows)."""
    b_tile = tl.load(b + n[:, None] * RANK + tl.arange(0, RANK)[None, :])
    return tl.dot(b_tile, tl.trans(t.to(b_tile.dtype)), input_precision="ieee")
