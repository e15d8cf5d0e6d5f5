"""Paged attention over rows: one kernel for causal rows, canvases, branches and prompts, and the merge of its splits.

A tile is a run of rows of one segment; the query heads that share a KV head are stacked in it, so keys are read once
for all of them. Key block j always goes to split j mod splits and is folded in ascending order: a row's numbers depend
on what it sees, never on its batch mates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.fp8 import step_of
from quicksilver.backends.cuda.kernels.launch import overlap, wait_turn
from quicksilver.backends.cuda.kernels.row_kernels import narrow

KEY_BLOCK = 64
"""Keys that are folded at once where queries are few; page sizes must divide it or be multiples of it."""
_LOG2_E = 1.4426950408889634
FORK_LEN = 15
"""Keys that a row can have in slots of its own."""
_FORK_LEN = tl.constexpr(FORK_LEN)


@dataclass(frozen=True, slots=True)
class RowTables:
    """What attention must know of the rows, all int32 on the device and at fixed addresses while a graph lives."""

    prefix_end: Tensor  # (rows,)
    span_start: Tensor
    span_end: Tensor
    tiles: Tensor  # (tiles, 3): segment, first row, end row; an empty tile does nothing
    pages: Tensor  # (segments, max_pages)
    page_size: int
    forks: Tensor | None = None
    """(rows, 1 + FORK_LEN): the position from which a row reads keys in slots of its own instead of the pages', and
    those slots. Keys keep their order, so numbers do not change. All rows of a tile have the same position. The last
    tiles are then one a row, for the splits in which rows fork; the tiles before them share what is in the others."""

    @property
    def num_shared(self) -> int:
        """Tiles whose rows share their keys."""
        return len(self.tiles) - (0 if self.forks is None else len(self.forks))


@dataclass(frozen=True, slots=True)
class AttendShape:
    """How the work is cut: `block_m` stacked queries a tile, `splits` programs along the keys."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_m: int = 64
    splits: int = 1

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def tile_rows(self) -> int:
        return self.block_m // self.group


@dataclass(frozen=True, slots=True)
class AttendSpace:
    """Where attention writes: its output, and the unfinished softmax sums of every split in fp32.

    Shared by all layers. Rows in no tile keep what stood there before, so it starts as zeros.
    """

    out: Tensor  # (rows, heads, head_dim)
    acc: Tensor  # (splits, rows, heads, head_dim)
    top: Tensor  # (splits, rows, heads)
    total: Tensor
    shrink: float = 1.0
    """What the output is multiplied by, where splits are merged."""
    steps: Tensor | None = None
    """(heads, rows) fp32 where the output is fp8, which it can be where splits are merged."""

    @classmethod
    def allocate(cls, shape: AttendShape, num_rows: int, dtype: torch.dtype, device: torch.device | str) -> AttendSpace:
        out = torch.zeros((num_rows, shape.num_heads, shape.head_dim), device=device, dtype=dtype)
        size = (shape.splits if shape.splits > 1 else 0, num_rows, shape.num_heads)
        acc = torch.zeros((*size, shape.head_dim), device=device)
        return cls(out, acc, torch.full(size, -torch.inf, device=device), torch.zeros(size, device=device))


@triton.jit
def _fold(q, k, v, is_visible, top, total, acc, scale):
    """One block of keys into the running softmax. A fully hidden block leaves a row exactly as it was."""
    s = tl.dot(q, k, input_precision="ieee") * scale
    s = tl.where(is_visible, s, float("-inf"))
    new_top = tl.maximum(top, tl.max(s, 1))
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)
    p = tl.exp2(s - safe[:, None])
    shrink = tl.exp2(top - safe)
    total = total * shrink + tl.sum(p, 1)
    acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return new_top, total, acc


@triton.jit
def slots_of(segment, key, longest, fork, own, pages, max_pages, PAGE: tl.constexpr, FORKS: tl.constexpr):
    """Where keys lie. A page behind the visible prefix may be unset; what is read there is hidden by the caller."""
    page = tl.load(pages + segment * max_pages + key // PAGE, mask=key < longest, other=0)
    slot = tl.maximum(page, 0).to(tl.int64) * PAGE + key % PAGE
    if FORKS:
        has_own = (key >= fork) & (key < longest)
        slot = tl.where(has_own, tl.load(own + key - fork, mask=has_own, other=0).to(tl.int64), slot)
    return slot


@triton.jit
def forked_splits(fork, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """-> the splits that hold what lies behind `fork`, which is in one block of keys or in two neighbours; twice the
    same where it is one."""
    return fork // BLOCK_N % SPLITS, (fork + _FORK_LEN - 1) // BLOCK_N % SPLITS


@triton.jit
def _fold_whole(
    q, segment, head, first_block, num_blocks, k_cache, v_cache, pages, max_pages, top, total, acc, scale,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The blocks of keys that every row sees whole: nothing to hide, which is most of a long prompt."""
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, D)
    for block in range(first_block, num_blocks, SPLITS):
        key = block * BLOCK_N + n
        page = tl.load(pages + segment * max_pages + key // PAGE)
        at = (page.to(tl.int64) * PAGE + key % PAGE) * (KV_HEADS * D) + head * D
        k_tile = tl.load(k_cache + at[None, :] + d[:, None])
        v_tile = tl.load(v_cache + at[:, None] + d[None, :])
        s = tl.dot(q, k_tile, input_precision="ieee")
        new_top = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v_tile.dtype), v_tile, input_precision="ieee")
        top = new_top
    return top, total, acc


@triton.jit
def _fold_prefix(
    q, segment, head, first_block, sees_to, longest, fork, own, k_cache, v_cache, pages, max_pages,
    top, total, acc, scale,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    FORKS: tl.constexpr,
):  # fmt: skip
    """Blocks of cached keys, each row up to where it sees."""
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, D)
    for block in range(first_block, tl.cdiv(longest, BLOCK_N), SPLITS):
        key = block * BLOCK_N + n
        slot = slots_of(segment, key, longest, fork, own, pages, max_pages, PAGE, FORKS)
        at = slot * (KV_HEADS * D) + head * D
        k_tile = tl.load(k_cache + at[None, :] + d[:, None])
        v_tile = tl.load(v_cache + at[:, None] + d[None, :])
        is_visible = key[None, :] < sees_to[:, None]
        top, total, acc = _fold(q, k_tile, v_tile, is_visible, top, total, acc, scale)
    return top, total, acc


@triton.jit
def _fold_span(
    q, head, from_row, to_row, k, v, row_stride, top, total, acc, scale, D: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Rows of the same forward, where canvases see each other."""
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, D)
    has_span = to_row > from_row
    low = tl.min(tl.where(has_span, from_row, 2147483647), 0)
    high = tl.max(tl.where(has_span, to_row, 0), 0)
    for start in range(low, high, BLOCK_N):
        other = start + n
        at = other.to(tl.int64) * row_stride + head * D
        k_tile = tl.load(k + at[None, :] + d[:, None], mask=(other < high)[None, :], other=0.0)
        v_tile = tl.load(v + at[:, None] + d[None, :], mask=(other < high)[:, None], other=0.0)
        is_visible = (other[None, :] >= from_row[:, None]) & (other[None, :] < to_row[:, None])
        top, total, acc = _fold(q, k_tile, v_tile, is_visible, top, total, acc, scale)
    return top, total, acc


@triton.jit
def _forked_part(tiles, forks, num_shared, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """-> as `_own_part`, and whether there is anything to do: the splits in which rows fork belong to the rows' own
    tiles, two programs each, and all others to the shared tiles."""
    program, head = tl.program_id(0), tl.program_id(1)
    mine = program - num_shared * SPLITS
    is_own = mine >= 0
    tile = tl.where(is_own, num_shared + mine // 2, program // SPLITS)
    fork = tl.load(forks + tl.load(tiles + 3 * tile + 1) * (1 + _FORK_LEN))
    first, second = forked_splits(fork, BLOCK_N, SPLITS)
    split = tl.where(is_own, tl.where(mine % 2 == 0, first, second), program % SPLITS)
    is_mine = tl.where(is_own, (mine % 2 == 0) | (first != second), (split != first) & (split != second))
    return tile, head, split, is_mine


@triton.jit
def _own_part(SPLITS: tl.constexpr):
    """-> this program's tile, KV head and split. Where there are splits, tiles come last in the order of programs: most
    are empty. Else they come first, so that neighbours share keys, and from the end, where rows see most."""
    if SPLITS == 1:
        return tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    return tl.program_id(2), tl.program_id(1), tl.program_id(0)


@triton.jit
def _attend_tile(
    tile, head, split, is_mine,
    q, k, v, k_cache, v_cache, out, part_acc, part_top, part_total,
    prefix_end, span_start, span_end, tiles, pages, forks,
    scale, row_stride, max_pages, num_rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, FORKS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    segment, first, end = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if FORKS:
        end = tl.where(is_mine, end, first)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m, d = tl.arange(0, BLOCK_M), tl.arange(0, D)
    row = first + m // GROUP
    is_row = (row < end) & (m < (BLOCK_M // GROUP) * GROUP)
    sees_to = tl.load(prefix_end + row, mask=is_row, other=0)
    from_row = tl.load(span_start + row, mask=is_row, other=0)
    to_row = tl.load(span_end + row, mask=is_row, other=0)
    longest = tl.max(sees_to, 0)
    own = forks + first * (1 + _FORK_LEN)
    fork = tl.load(own) if FORKS else 0
    is_last = split == SPLITS - 1
    has_keys = (split < tl.cdiv(longest, BLOCK_N)) | (is_last & (tl.max(to_row - from_row, 0) > 0))
    has_work = (first < end) & (has_keys | (SPLITS == 1))
    # Who has no keys leaves: the next launch needs the room. Of the first tile somebody always waits, or the launch
    # behind this one would not. Tables are older than the launch before.
    if has_work | ((tile == 0) & is_last):
        wait_turn(OVERLAPS)
    if has_work:
        q_at = row.to(tl.int64)[:, None] * row_stride + ((head * GROUP + m % GROUP) * D)[:, None] + d[None, :]
        q_tile = tl.load(q + q_at, mask=is_row[:, None], other=0.0)
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, D), tl.float32)
        begin = split
        # Only in large tiles: elsewhere all blocks are folded alike, so that a row's last bits do not go by its tile.
        if BLOCK_M > 64 and not FORKS:
            whole = tl.min(tl.where(is_row, sees_to, 2147483647), 0) // BLOCK_N
            top, total, acc = _fold_whole(
                q_tile, segment, head, split, whole, k_cache, v_cache, pages, max_pages, top, total, acc, scale,
                KV_HEADS, D, PAGE, BLOCK_N, SPLITS,
            )  # fmt: skip
            begin = split + tl.cdiv(tl.maximum(whole - split, 0), SPLITS) * SPLITS
        top, total, acc = _fold_prefix(
            q_tile, segment, head, begin, sees_to, longest, fork, own + 1, k_cache, v_cache, pages, max_pages,
            top, total, acc, scale, KV_HEADS, D, PAGE, BLOCK_N, SPLITS, FORKS,
        )  # fmt: skip
        if is_last:
            top, total, acc = _fold_span(
                q_tile, head, from_row, to_row, k, v, row_stride, top, total, acc, scale, D, BLOCK_N
            )
        at_head = row.to(tl.int64) * HEADS + head * GROUP + m % GROUP
        if SPLITS == 1:
            y = acc / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out + at_head[:, None] * D + d[None, :], y.to(out.dtype.element_ty), mask=is_row[:, None])
        else:
            at_part = tl.cast(split, tl.int64) * num_rows * HEADS + at_head
            tl.store(part_acc + at_part[:, None] * D + d[None, :], acc, mask=is_row[:, None])
            tl.store(part_top + at_part, top, mask=is_row)
            tl.store(part_total + at_part, total, mask=is_row)


@triton.jit
def _attend_kernel(
    q, k, v, k_cache, v_cache, out, part_acc, part_top, part_total,
    prefix_end, span_start, span_end, tiles, pages, forks,
    scale, row_stride, max_pages, num_rows, num_shared,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, FORKS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if FORKS:
        tile, head, split, is_mine = _forked_part(tiles, forks, num_shared, BLOCK_N, SPLITS)
    else:
        tile, head, split = _own_part(SPLITS)
        is_mine = True
    _attend_tile(
        tile, head, split, is_mine, q, k, v, k_cache, v_cache, out, part_acc, part_top, part_total,
        prefix_end, span_start, span_end, tiles, pages, forks, scale, row_stride, max_pages, num_rows,
        HEADS, KV_HEADS, D, PAGE, BLOCK_M, BLOCK_N, SPLITS, FORKS, OVERLAPS,
    )  # fmt: skip


@triton.jit
def _merge_kernel(
    out, steps, part_acc, part_top, part_total, prefix_end, span_start, span_end, num_vectors,
    HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
    SHRINK: tl.constexpr, FP8: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One program a (row, head): the splits' sums become its output, in the order of the splits, as far as they had
    keys. The last has the rows of this forward."""
    wait_turn(OVERLAPS)
    at = tl.program_id(0).to(tl.int64)
    split, d = tl.arange(0, SPLITS), tl.arange(0, D)
    here = split * num_vectors + at
    row = at // HEADS
    has_span = tl.load(span_end + row) > tl.load(span_start + row)
    is_kept = (split * BLOCK_N < tl.load(prefix_end + row)) | (has_span & (split == SPLITS - 1))
    top = tl.load(part_top + here, mask=is_kept, other=float("-inf"))
    totals = tl.load(part_total + here, mask=is_kept, other=0.0)
    acc = tl.load(part_acc + here[:, None] * D + d[None, :], mask=is_kept[:, None], other=0.0)
    best = tl.max(top, 0)
    weight = tl.exp2(top - tl.where(best == float("-inf"), 0.0, best))
    total = tl.sum(weight * totals, 0)
    y = tl.sum(acc * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    if FP8:
        step = step_of(tl.max(tl.abs(y), 0))
        tl.store(steps + at % HEADS * (num_vectors // HEADS) + at // HEADS, step)
        y = y / step
    tl.store(out + at * D + d, narrow(y, out.dtype.element_ty, SHRINK))


def attend_paged(
    qkv: Tensor,
    caches: tuple[Tensor, Tensor],
    rows: RowTables,
    shape: AttendShape,
    space: AttendSpace,
    merges: bool = True,
) -> Tensor:
    """qkv (rows, heads + 2 kv_heads, head_dim), rotated, its KV already written -> (rows, heads * head_dim), a view of
    `space.out`. Head sizes must be powers of two from 16, splits powers of two. Where `merges` is off the launch
    behind merges the splits in `space`; then there are few rows, of which a split mostly sees one block of keys."""
    num_rows, heads, kv_heads = qkv.shape[0], shape.num_heads, shape.num_kv_heads
    parts, num_tiles = (space.acc, space.top, space.total), rows.tiles.shape[0]
    grid = (num_tiles, kv_heads, 1) if shape.splits == 1 else (shape.splits, kv_heads, num_tiles)
    if rows.forks is not None:
        grid = (shape.splits * rows.num_shared + 2 * (num_tiles - rows.num_shared), kv_heads, 1)
    _attend_kernel[grid](
        qkv, qkv[:, heads:], qkv[:, heads + kv_heads :], *caches, space.out, *parts,
        rows.prefix_end, rows.span_start, rows.span_end, rows.tiles, rows.pages,
        rows.tiles if rows.forks is None else rows.forks,
        shape.head_dim**-0.5 * _LOG2_E, qkv.stride(0), rows.pages.stride(0), num_rows, rows.num_shared,
        HEADS=heads, KV_HEADS=kv_heads, D=shape.head_dim, PAGE=rows.page_size,
        BLOCK_M=shape.block_m, BLOCK_N=key_block(shape), SPLITS=shape.splits,
        FORKS=rows.forks is not None, num_warps=4 if shape.block_m <= 64 else 8, num_stages=2 if merges else 1,
        **overlap(),
    )  # fmt: skip
    if shape.splits > 1 and merges:
        _merge_kernel[(num_rows * heads,)](
            space.out, space.out if space.steps is None else space.steps, *parts,
            rows.prefix_end, rows.span_start, rows.span_end, num_rows * heads,
            HEADS=heads, D=shape.head_dim, SPLITS=shape.splits, BLOCK_N=key_block(shape), SHRINK=space.shrink,
            FP8=space.steps is not None, num_warps=1, **overlap(),
        )  # fmt: skip
    return space.out.view(num_rows, -1)


def key_block(shape: AttendShape) -> int:
    """Twice as many at once where queries are many, and there is shared memory for them."""
    return 2 * KEY_BLOCK if shape.block_m > 64 and shape.head_dim <= 128 else KEY_BLOCK


def cut_tiles(segments: list[tuple[int, int]], tile_rows: int) -> list[tuple[int, int, int]]:
    """Segments as (first row, end row) -> tiles (segment, first row, end row) of at most `tile_rows` rows."""
    return [
        (index, start, min(start + tile_rows, end))
        for index, (first, end) in enumerate(segments)
        for start in range(first, end, tile_rows)
    ]
