"""Memory-bound matmul for small batches: tiling, split K, and its device functions.

A program owns a pair of column blocks and a range of K. The weights are the M side of the MMA and the rows its N side.
K is split if the columns alone would leave SMs idle. The last program to finish adds the partial sums in ascending
order, so the result does not depend on which program that is. The split depends on the shape of the weights only, never
on the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

# Column tiles of one linear at most.
MAX_TILES = 2048
# From this number of 64-column tiles on, gate and up use tiles of 32 columns.
NARROW_GATES = 180
# SMs of an H200.
NUM_SMS = 132
# CTAs needed to saturate HBM.
SATURATING_CTAS = 96
# Shared memory per SM.
SHARED_BYTES = 232_448
# Shared memory used for anything but pipeline stages.
_RESERVED_BYTES = 7_448
# k-block of the fp8 path.
FP8_BLOCK_K = 128
# 16-bit words of a group of 32 int4 weights, which share a step and a minimum (`int4_packing.py`).
GROUP_WORDS = 8
_GROUP_WORDS = tl.constexpr(GROUP_WORDS)
# Sequential fp8 MMAs of a program with split K. Each is waited for before its scale is applied.
_MAX_FP8_MMAS = 16


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiling of one program: two blocks of `block_n` columns, `depth` of K, `block_k` per pipeline stage. For fp8
    inputs with a scale per `group` columns, `block_k` is a multiple of `group`."""

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
class PartialSums:
    """Partial sums of the splits, and a counter per tile of finished splits, which is zero between launches."""

    sums: Tensor
    arrived: Tensor

    @classmethod
    def allocate(cls, num_floats: int, device: torch.device | str) -> PartialSums:
        arrived = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)
        return cls(torch.zeros(num_floats, device=device), arrived)


def pick_block_n(half: int) -> int:
    """Columns of one block: wide enough for the MMA, with enough tiles to fill the GPU."""
    for block_n in (64, 32):
        if half % block_n == 0 and half // block_n >= 9:
            return block_n
    return 32 if half % 32 == 0 else 16


def pick_gate_block_n(ffn: int) -> int:
    """Columns of a gate block and an up block: with many tiles, smaller ones balance better over the SMs."""
    return 32 if ffn // 64 >= NARROW_GATES and ffn % 32 == 0 else pick_block_n(ffn)


def pick_tiling(block_n: int, num_tiles: int, k: int, num_rows: int, width: float = 2) -> Tiling:
    """Split K while each split gets an SM of its own; `width` is bytes per weight. The number of rows changes the
    number of pipeline stages only, not the split or the reduction order."""
    splits = choose_splits(num_tiles, 1)
    depth = _even_depth(k, splits, 128)
    if k % 128 or num_tiles * -(-k // depth) < SATURATING_CTAS:
        depth = min(max(_even_depth(k, splits, 64), 128), _even_depth(k, 1, 64))
    sizes = (128, 64) if k % 128 == 0 and depth % 128 == 0 else (64,)
    return _with_stages(Tiling(block_n, 64, depth), sizes, num_tiles, k, num_rows, width)


def pick_fp8_tiling(block_n: int, num_tiles: int, k: int, num_rows: int, group: int) -> Tiling:
    """As `pick_tiling` for fp8 inputs; a large K has more splits, two or three per SM."""
    wanted = max(group, FP8_BLOCK_K)
    block_k = wanted if k % wanted == 0 else group
    depth = _even_depth(k, choose_splits(num_tiles, -(-k // (_MAX_FP8_MMAS * group))), block_k)
    sizes = (2 * block_k, block_k) if depth == k and k % (2 * block_k) == 0 else (block_k,)
    return _with_stages(Tiling(block_n, block_k, depth, group=group), sizes, num_tiles, k, num_rows, 1)


def choose_splits(num_tiles: int, min_splits: int) -> int:
    """SMs per tile, or `min_splits` if that is more; 1 if there are more tiles than half the SMs."""
    share = NUM_SMS // num_tiles
    return max(share, min_splits) if share > 1 else 1


def max_splits(num_tiles: int, k: int) -> int:
    """Upper bound of the number of splits, for the size of the buffers."""
    return choose_splits(num_tiles, -(-k // (_MAX_FP8_MMAS * 64)))


def _even_depth(k: int, splits: int, step: int) -> int:
    return -(-k // splits // step) * step


def _with_stages(tiling: Tiling, sizes: tuple[int, ...], num_tiles: int, k: int, num_rows: int, width: float) -> Tiling:
    """The tiling with the first k-block of `sizes` that allows three stages, or the last one, and its number of
    stages."""
    found = tiling
    for block_k in sizes:
        found = replace(tiling, block_k=block_k)
        found = replace(found, num_stages=_stages(found, num_tiles, k, num_rows, width))
        if found.num_stages > 2:
            break
    return found


def _stages(tiling: Tiling, num_tiles: int, k: int, num_rows: int, width: float) -> int:
    """Pipeline stages such that all programs are resident at once. A program whose weights all fit into shared memory
    gets all of it, which measures better with PDL; for a larger K half of it is enough."""
    share = min(-(-num_tiles * tiling.splits(k) // NUM_SMS), 3)
    if 2 * tiling.block_n * tiling.depth * width > SHARED_BYTES:
        share = max(share, 2)
    input_width = 1 if tiling.group else max(width, 2)
    stage = int((2 * tiling.block_n * width + num_rows * input_width) * tiling.block_k)
    return max(2, min((SHARED_BYTES - _RESERVED_BYTES) // share // stage, tiling.depth // tiling.block_k + 1, 12))


@triton.jit
def matmul(
    x, steps, w, first, second, K, begin, end,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, FP8: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Two (columns, rows) products over K range [begin, end); `first` and `second` are rows of w, int64. With FP8, x is
    fp8 with scales `steps` (K / GROUP, rows). If w is int16 it holds int4 weights, and `steps` their groups."""
    if w.dtype.element_ty == tl.int16:
        return _matmul_int4(x, steps, w, first, second, K, begin, end, ROWS, BLOCK_N, BLOCK_K, EVEN)
    if FP8:
        return _matmul_fp8(
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
def _concat_columns(first, second, BLOCK_N: tl.constexpr):
    """Concatenate two column blocks."""
    return tl.reshape(tl.permute(tl.join(first, second), (1, 0)), (2 * BLOCK_N,))


@triton.jit
def _split_columns(acc, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    """Split the sums of two concatenated column blocks."""
    return tl.split(tl.permute(tl.reshape(acc, (2, BLOCK_N, ROWS)), (1, 2, 0)))


@triton.jit
def group_halves(group):
    """Groups of int4 weights -> steps and minimums, fp16."""
    step = (group & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return step, (group >> 16).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def _per_word(of_group, COLUMNS: tl.constexpr, GROUPS: tl.constexpr):
    """(columns, groups) -> (columns, words)."""
    wide = tl.broadcast_to(of_group[:, :, None], (COLUMNS, GROUPS, _GROUP_WORDS))
    return tl.reshape(wide, (COLUMNS, GROUPS * _GROUP_WORDS))


@triton.jit
def _load(at, is_in, EVEN: tl.constexpr):
    return tl.load(at) if EVEN else tl.load(at, mask=is_in, other=0)


@triton.jit
def _dequantise_and_mma(acc, bits, step, minimum, x_tile):
    """Accumulate dequantised weights times x; see `int4_packing.py` for the bits."""
    weight = bits.to(tl.float16, bitcast=True) * step + minimum
    return tl.dot(weight.to(x_tile.dtype), tl.trans(x_tile), acc, input_precision="ieee")


@triton.jit
def _matmul_int4(
    x, groups, w, first, second, K, begin, end,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Four MMAs per k-block, one per nibble of a word: the first eight columns of every group, the next eight, and so
    on."""
    GROUPS: tl.constexpr = BLOCK_K // 32
    m, g, k = tl.arange(0, ROWS), tl.arange(0, GROUPS), tl.arange(0, BLOCK_K // 4)
    rows = _concat_columns(first, second, BLOCK_N)
    acc = tl.zeros((2 * BLOCK_N, ROWS), tl.float32)
    from_x = x + m[:, None] * K + (k // _GROUP_WORDS * 32 + k % _GROUP_WORDS)[None, :]
    from_w = w + rows[:, None] * (K // 4) + k[None, :]
    from_groups = groups + rows[:, None] * (K // 32) + g[None, :]
    for start in range(begin, end, BLOCK_K):
        is_in, is_group = (start + k * 4 < end)[None, :], (start + g * 32 < end)[None, :]
        word = _load(from_w + start // 4, is_in, EVEN)
        step, minimum = group_halves(_load(from_groups + start // 32, is_group, EVEN))
        step, minimum = _per_word(step, 2 * BLOCK_N, GROUPS), _per_word(minimum, 2 * BLOCK_N, GROUPS)
        high_step, high_word = step * 0.0625, word >> 8
        acc = _dequantise_and_mma(acc, word & 0x0F, step, minimum, _load(from_x + start, is_in, EVEN))
        acc = _dequantise_and_mma(acc, word & 0xF0, high_step, minimum, _load(from_x + start + 8, is_in, EVEN))
        acc = _dequantise_and_mma(acc, high_word & 0x0F, step, minimum, _load(from_x + start + 16, is_in, EVEN))
        acc = _dequantise_and_mma(acc, high_word & 0xF0, high_step, minimum, _load(from_x + start + 24, is_in, EVEN))
    return _split_columns(acc, BLOCK_N, ROWS)


@triton.jit
def _matmul_fp8(
    x, steps, w, first, second, K, begin, end,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Both products in one MMA: each MMA is waited for before its scale is applied, and a program waits for one at a
    time. Up to `GROUPS` scales are loaded before the loop, which then hits L1; inside the loop they would queue after
    the weight loads."""
    m, k = tl.arange(0, ROWS), tl.arange(0, GROUP)
    rows = _concat_columns(first, second, BLOCK_N)
    group = tl.minimum(begin // GROUP + tl.arange(0, GROUPS), end // GROUP - 1)
    lowest = tl.min(tl.min(tl.load(steps + group[:, None] * ROWS + m[None, :]), 1), 0)
    # Scales are positive. The compiler cannot prove it, so it does not remove these loads.
    acc = tl.zeros((2 * BLOCK_N, ROWS), tl.float32) + tl.where(lowest < 0, 1.0, 0.0)
    for start in range(begin, end, BLOCK_K):
        for part in tl.static_range(BLOCK_K // GROUP):
            at = start + part * GROUP + k
            x_tile = tl.load(x + m[:, None] * K + at[None, :])
            w_tile = tl.load(w + rows[:, None] * K + at[None, :])
            step = tl.load(steps + (start // GROUP + part) * ROWS + m)
            acc += tl.dot(w_tile, tl.trans(x_tile)) * step[None, :]
    return _split_columns(acc, BLOCK_N, ROWS)


@triton.jit
def store_partial(
    sums, arrived, a, b, tile, split,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr,
    FINISHERS: tl.constexpr,
):  # fmt: skip
    """Store this split's sums -> the slices of rows, [begin, end), that this program has to reduce: all of them for the
    last program to finish, or, with several finishers, an equal share for each of the last splits once all splits are
    stored. Programs with lower indices are scheduled first, so waiting cannot deadlock."""
    m, n = tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
    at = sums + (tile * SPLITS + split) * (2 * BLOCK_N * ROWS) + m[None, :] * BLOCK_N + n[:, None]
    tl.store(at, a)
    tl.store(at + BLOCK_N * ROWS, b)
    tl.debug_barrier()  # all threads have stored before one thread signals
    before = tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu")
    SLICES: tl.constexpr = ROWS // SLICE // FINISHERS
    if FINISHERS == 1:
        begin, end = 0, tl.where(before == SPLITS - 1, SLICES, 0)
    else:
        own_rows = split - (SPLITS - FINISHERS)
        begin, end = own_rows * SLICES, tl.where(own_rows >= 0, own_rows * SLICES + SLICES, own_rows * SLICES)
        if own_rows >= 0:
            while tl.load(arrived + tile, volatile=True) < SPLITS:
                pass
            tl.debug_barrier()
    return begin, end


@triton.jit
def rows_to_reduce(split, ROWS: tl.constexpr, SPLITS: tl.constexpr, SLICE: tl.constexpr, FINISHERS: tl.constexpr):
    """The rows that a program reduces: all of them without split K, else the slice of this finisher."""
    if SPLITS == 1:
        rows = tl.arange(0, ROWS)
    else:  # no early return: Triton requires all returns to have one shape, including those not taken
        rows = tl.maximum(split - (SPLITS - FINISHERS), 0) * SLICE + tl.arange(0, SLICE)
    return rows


@triton.jit
def sum_partials(sums, m, tile, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """Add all splits of rows m in ascending order. Loads bypass L1, which may hold stale data."""
    n = tl.arange(0, BLOCK_N)
    at = sums + tile * SPLITS * (2 * BLOCK_N * ROWS) + m[None, :] * BLOCK_N + n[:, None]
    a = tl.load(at, cache_modifier=".cg")
    b = tl.load(at + BLOCK_N * ROWS, cache_modifier=".cg")
    for split in tl.static_range(1, SPLITS):
        a += tl.load(at + split * (2 * BLOCK_N * ROWS), cache_modifier=".cg")
        b += tl.load(at + split * (2 * BLOCK_N * ROWS) + BLOCK_N * ROWS, cache_modifier=".cg")
    return a, b


@triton.jit
def reset_counter(arrived, tile, begin, end, SPLITS: tl.constexpr, FINISHERS: tl.constexpr):
    """The last finisher resets the counter for the next launch."""
    if end > begin:
        seen = SPLITS + FINISHERS - 1
        if FINISHERS > 1:
            seen = tl.atomic_add(arrived + tile, 1, sem="relaxed", scope="gpu")
        if seen == SPLITS + FINISHERS - 1:
            tl.store(arrived + tile, 0)


@triton.jit
def inv_rms_of(squares, m, K, eps, TILES: tl.constexpr, ROWS: tl.constexpr):
    """1 / RMS of each row, from the sums of squares per tile that the previous linear stored."""
    total = tl.load(squares + m)
    for tile in tl.static_range(1, TILES):
        total += tl.load(squares + tile * ROWS + m)
    return tl.rsqrt(total / K + eps)


@triton.jit
def compute_ax(
    item, x, steps, a, ax, gate, ready, K, depth,
    ROWS: tl.constexpr, GROUP: tl.constexpr, AX_SPLITS: tl.constexpr, RANK: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """gate * (A x) for 16 ranks over one K range; with FP8, x has a scale per `GROUP` columns. The last program to
    finish adds all ranges in ascending order into the first plane of `low` and increments `ready[0]`."""
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
    total = ax + m[None, :] * RANK + n[:, None]
    is_last = part >= 0
    if AX_SPLITS > 1:
        tl.store(total + (part + 1) * (ROWS * RANK), acc)
        tl.debug_barrier()  # all threads have stored before one thread signals
        is_last = tl.atomic_add(ready + 1 + group, 1, sem="acq_rel", scope="gpu") == AX_SPLITS - 1
    if is_last:
        if AX_SPLITS > 1:
            acc = tl.load(total + ROWS * RANK, cache_modifier=".cg")
            for other in tl.static_range(2, AX_SPLITS + 1):
                acc += tl.load(total + other * (ROWS * RANK), cache_modifier=".cg")
        tl.store(total, acc)
        tl.debug_barrier()
        tl.atomic_add(ready, 1, sem="release", scope="gpu")


@triton.jit
def wait_for_ax(ax, ready, m, RANK: tl.constexpr):
    """Wait for the gated A x, (rows, rank). Its producers are the first programs of the launch, so waiting cannot
    deadlock."""
    while tl.load(ready, volatile=True) < RANK // 16:
        pass
    tl.debug_barrier()
    return tl.load(ax + m[:, None] * RANK + tl.arange(0, RANK)[None, :], cache_modifier=".cg")


@triton.jit
def adapter_b(t, b, n, RANK: tl.constexpr):
    """B (gated A x) for columns n, (columns, rows)."""
    b_tile = tl.load(b + n[:, None] * RANK + tl.arange(0, RANK)[None, :])
    return tl.dot(b_tile, tl.trans(t.to(b_tile.dtype)), input_precision="ieee")
