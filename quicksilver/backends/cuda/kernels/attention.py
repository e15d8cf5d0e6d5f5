"""Paged attention over rows: one kernel for causal rows, canvases, scoring branches and prompts, and a merge kernel.

A tile is a run of rows of one segment, with the query heads that share a KV head stacked, so keys are read once for all
of them. Key block j always belongs to split j mod splits, and blocks are accumulated in ascending order: attention is
batch-invariant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.kernels.fp8 import fp8_step
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch
from quicksilver.backends.cuda.kernels.row_kernels import to_input_format

# Keys per block for small tiles. Page sizes must divide it or be multiples of it.
KEY_BLOCK = 64
LOG2_E = 1.4426950408889634
# Maximum number of keys that a tree row reads from scratch slots.
MAX_TREE_DEPTH = 15
_MAX_TREE_DEPTH = tl.constexpr(MAX_TREE_DEPTH)


@dataclass(frozen=True, slots=True)
class RowTables:
    """Row tables of attention: int32 on the device, at fixed addresses while a graph exists."""

    prefix_end: Tensor  # (rows,)
    span_start: Tensor
    span_end: Tensor
    tiles: Tensor  # (tiles, 3): segment, first row, end row; empty tiles are skipped
    pages: Tensor  # (segments, max_pages)
    page_size: int
    # For draft trees: (rows, 1 + MAX_TREE_DEPTH). Column 0 is the first position whose key the row reads from a scratch
    # slot instead of a page; it is equal for all rows of a tile. The other columns are the slots. Keys are accumulated
    # in order of position, so results do not change. `tiles` then has two groups. The last tiles have one row each and
    # process the splits that contain tree keys. The tiles before them have several rows and process the other splits.
    tree_slots: Tensor | None = None

    @property
    def num_shared(self) -> int:
        """Number of tiles that read keys from pages only. The rows of such a tile share these keys."""
        return len(self.tiles) - (0 if self.tree_slots is None else len(self.tree_slots))


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Tiling: `block_m` stacked queries per tile, `splits` programs along the keys."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_m: int = 64
    splits: int = 1
    split_keys: int = 0  # fewest keys of a split in `decode_attention.py`; 0 is this kernel

    @property
    def is_decode(self) -> bool:
        return self.split_keys > 0

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def tile_rows(self) -> int:
        return self.block_m // self.group


@dataclass(frozen=True, slots=True)
class AttentionWorkspace:
    """Output of attention, and the partial softmax of every split in fp32.

    Shared by all layers. Rows outside all tiles are never written, so buffers start as zeros.
    """

    shape: AttentionShape
    out: Tensor  # (rows, heads, head_dim)
    acc: Tensor  # (splits, rows, heads, head_dim)
    top: Tensor  # (splits, rows, heads)
    total: Tensor
    # Factor of the merged output.
    input_scale: float = 1.0
    # (heads, rows) fp32 scales of a merged fp8 output.
    steps: Tensor | None = None
    # (rows * kv_heads,) int32 of `decode_attention.py`: splits that are stored, by the first row of their tile.
    arrived: Tensor | None = None

    @classmethod
    def allocate(
        cls, shape: AttentionShape, num_rows: int, dtype: torch.dtype, device: torch.device | str
    ) -> AttentionWorkspace:
        out = torch.zeros((num_rows, shape.num_heads, shape.head_dim), device=device, dtype=dtype)
        size = (shape.splits if shape.splits > 1 else 0, num_rows, shape.num_heads)
        acc = torch.zeros((*size, shape.head_dim), device=device)
        top, total = torch.full(size, -torch.inf, device=device), torch.zeros(size, device=device)
        num_counters = num_rows * shape.num_kv_heads if shape.is_decode else 0
        return cls(shape, out, acc, top, total, arrived=torch.zeros(num_counters, dtype=torch.int32, device=device))


@triton.jit
def accumulate_keys(q, k, v, is_visible, top, total, acc, scale):
    """Accumulate one key block into the running softmax. A fully masked block does not change a row."""
    s = tl.dot(q, k, input_precision="ieee") * scale
    s = tl.where(is_visible, s, float("-inf"))
    new_top = tl.maximum(top, tl.max(s, 1))
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
    p = tl.exp2(s - finite_top[:, None])
    rescale = tl.exp2(top - finite_top)
    total = total * rescale + tl.sum(p, 1)
    acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return new_top, total, acc


@triton.jit
def key_slots(segment, key, longest, tree_start, own_slots, pages, max_pages, PAGE: tl.constexpr, TREE: tl.constexpr):
    """Cache slots of keys. A page after the visible prefix may be unset; the caller masks what is read there."""
    page = tl.load(pages + segment * max_pages + key // PAGE, mask=key < longest, other=0)
    slot = tl.maximum(page, 0).to(tl.int64) * PAGE + key % PAGE
    if TREE:
        is_tree_key = (key >= tree_start) & (key < longest)
        slot = tl.where(
            is_tree_key, tl.load(own_slots + key - tree_start, mask=is_tree_key, other=0).to(tl.int64), slot
        )
    return slot


@triton.jit
def tree_splits(tree_start, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """-> the splits that contain the tree keys, which are in one key block or in two neighbouring ones."""
    return tree_start // BLOCK_N % SPLITS, (tree_start + _MAX_TREE_DEPTH - 1) // BLOCK_N % SPLITS


@triton.jit
def _accumulate_unmasked(
    q, segment, head, first_block, num_blocks, k_cache, v_cache, pages, max_pages, top, total, acc, scale,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Key blocks that are fully visible to every row, without masking: most of a long prompt."""
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
        rescale = tl.exp2(top - new_top)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v_tile.dtype), v_tile, input_precision="ieee")
        top = new_top
    return top, total, acc


@triton.jit
def accumulate_prefix(
    q, segment, head, first_block, end_block, visible_end, longest, tree_start, own_slots, k_cache, v_cache, pages,
    max_pages, top, total, acc, scale,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr,
    TREE: tl.constexpr,
):  # fmt: skip
    """Every STEP-th block of cached keys in a range, masked by each row's prefix."""
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, D)
    for block in range(first_block, end_block, STEP):
        key = block * BLOCK_N + n
        slot = key_slots(segment, key, longest, tree_start, own_slots, pages, max_pages, PAGE, TREE)
        at = slot * (KV_HEADS * D) + head * D
        k_tile = tl.load(k_cache + at[None, :] + d[:, None])
        v_tile = tl.load(v_cache + at[:, None] + d[None, :])
        is_visible = key[None, :] < visible_end[:, None]
        top, total, acc = accumulate_keys(q, k_tile, v_tile, is_visible, top, total, acc, scale)
    return top, total, acc


@triton.jit
def accumulate_span(
    q, head, from_row, to_row, k, v, row_stride, top, total, acc, scale, D: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Keys of the same forward, for canvas rows."""
    n, d = tl.arange(0, BLOCK_N), tl.arange(0, D)
    has_span = to_row > from_row
    high = tl.max(tl.where(has_span, to_row, 0), 0)
    # Never above `high`: the pipelined loads of an empty loop add steps to `low`, which must not overflow.
    low = tl.min(tl.where(has_span, from_row, high), 0)
    for start in range(low, high, BLOCK_N):
        other = start + n
        at = other.to(tl.int64) * row_stride + head * D
        k_tile = tl.load(k + at[None, :] + d[:, None], mask=(other < high)[None, :], other=0.0)
        v_tile = tl.load(v + at[:, None] + d[None, :], mask=(other < high)[:, None], other=0.0)
        is_visible = (other[None, :] >= from_row[:, None]) & (other[None, :] < to_row[:, None])
        top, total, acc = accumulate_keys(q, k_tile, v_tile, is_visible, top, total, acc, scale)
    return top, total, acc


@triton.jit
def _tree_work_item(tiles, tree_slots, num_shared, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """As `_work_item`, and whether there is work: splits with tree keys belong to the tiles of single rows, two
    programs each; all other splits belong to the shared tiles."""
    program, head = tl.program_id(0), tl.program_id(1)
    tree_item = program - num_shared * SPLITS
    is_tree_item = tree_item >= 0
    tile = tl.where(is_tree_item, num_shared + tree_item // 2, program // SPLITS)
    tree_start = tl.load(tree_slots + tl.load(tiles + 3 * tile + 1) * (1 + _MAX_TREE_DEPTH))
    first, second = tree_splits(tree_start, BLOCK_N, SPLITS)
    split = tl.where(is_tree_item, tl.where(tree_item % 2 == 0, first, second), program % SPLITS)
    has_item = tl.where(is_tree_item, (tree_item % 2 == 0) | (first != second), (split != first) & (split != second))
    return tile, head, split, has_item


@triton.jit
def _work_item(SPLITS: tl.constexpr):
    """-> this program's tile, KV head and split. With splits, tiles vary slowest, because most are empty. Without, they
    vary fastest, so that neighbouring programs share keys, and the longest rows start first."""
    if SPLITS == 1:
        return tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    return tl.program_id(2), tl.program_id(1), tl.program_id(0)


@triton.jit
def _attend_tile(
    tile, head, split, has_item,
    q, k, v, k_cache, v_cache, out, part_acc, part_top, part_total,
    prefix_end, span_start, span_end, tiles, pages, tree_slots,
    scale, row_stride, max_pages, num_rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, TREE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    segment, first, end = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if TREE:
        end = tl.where(has_item, end, first)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    m, d = tl.arange(0, BLOCK_M), tl.arange(0, D)
    row = first + m // GROUP
    is_row = (row < end) & (m < (BLOCK_M // GROUP) * GROUP)
    visible_end = tl.load(prefix_end + row, mask=is_row, other=0)
    from_row = tl.load(span_start + row, mask=is_row, other=0)
    to_row = tl.load(span_end + row, mask=is_row, other=0)
    longest = tl.max(visible_end, 0)
    own_slots = tree_slots + first * (1 + _MAX_TREE_DEPTH)
    tree_start = tl.load(own_slots) if TREE else 0
    is_last = split == SPLITS - 1
    has_keys = (split < tl.cdiv(longest, BLOCK_N)) | (is_last & (tl.max(to_row - from_row, 0) > 0))
    has_work = (first < end) & (has_keys | (SPLITS == 1))
    # Programs without keys exit at once, so that the next kernel gets their resources. One program always waits:
    # the next kernel depends on the completion of the one before this. The tables were written before that kernel.
    if has_work | ((tile == 0) & is_last):
        pdl_wait_and_launch(PDL)
    if has_work:
        q_at = row.to(tl.int64)[:, None] * row_stride + ((head * GROUP + m % GROUP) * D)[:, None] + d[None, :]
        q_tile = tl.load(q + q_at, mask=is_row[:, None], other=0.0)
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, D), tl.float32)
        begin = split
        # Not in small tiles: there all blocks take one code path, so that a row's result does not depend on its tile.
        if BLOCK_M > 64 and not TREE:
            num_unmasked = tl.min(tl.where(is_row, visible_end, 2147483647), 0) // BLOCK_N
            top, total, acc = _accumulate_unmasked(
                q_tile, segment, head, split, num_unmasked, k_cache, v_cache, pages, max_pages, top, total, acc, scale,
                KV_HEADS, D, PAGE, BLOCK_N, SPLITS,
            )  # fmt: skip
            begin = split + tl.cdiv(tl.maximum(num_unmasked - split, 0), SPLITS) * SPLITS
        top, total, acc = accumulate_prefix(
            q_tile, segment, head, begin, tl.cdiv(longest, BLOCK_N), visible_end, longest, tree_start, own_slots + 1,
            k_cache, v_cache, pages, max_pages, top, total, acc, scale, KV_HEADS, D, PAGE, BLOCK_N, SPLITS, TREE,
        )  # fmt: skip
        if is_last:
            top, total, acc = accumulate_span(
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
    prefix_end, span_start, span_end, tiles, pages, tree_slots,
    scale, row_stride, max_pages, num_rows, num_shared,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, TREE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if TREE:
        tile, head, split, has_item = _tree_work_item(tiles, tree_slots, num_shared, BLOCK_N, SPLITS)
    else:
        tile, head, split = _work_item(SPLITS)
        has_item = True
    _attend_tile(
        tile, head, split, has_item, q, k, v, k_cache, v_cache, out, part_acc, part_top, part_total,
        prefix_end, span_start, span_end, tiles, pages, tree_slots, scale, row_stride, max_pages, num_rows,
        HEADS, KV_HEADS, D, PAGE, BLOCK_M, BLOCK_N, SPLITS, TREE, PDL,
    )  # fmt: skip


@triton.jit
def _merge_kernel(
    out, steps, part_acc, part_top, part_total, prefix_end, span_start, span_end, num_vectors,
    HEADS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
    INPUT_SCALE: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per (row, head): merge the splits that have keys, in ascending order. The last split holds the keys
    of this forward."""
    pdl_wait_and_launch(PDL)
    at = tl.program_id(0).to(tl.int64)
    split, d = tl.arange(0, SPLITS), tl.arange(0, D)
    part_at = split * num_vectors + at
    row = at // HEADS
    has_span = tl.load(span_end + row) > tl.load(span_start + row)
    has_keys = (split * BLOCK_N < tl.load(prefix_end + row)) | (has_span & (split == SPLITS - 1))
    top = tl.load(part_top + part_at, mask=has_keys, other=float("-inf"))
    totals = tl.load(part_total + part_at, mask=has_keys, other=0.0)
    acc = tl.load(part_acc + part_at[:, None] * D + d[None, :], mask=has_keys[:, None], other=0.0)
    best = tl.max(top, 0)
    weight = tl.exp2(top - tl.where(best == float("-inf"), 0.0, best))
    total = tl.sum(weight * totals, 0)
    y = tl.sum(acc * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    if FP8:
        step = fp8_step(tl.max(tl.abs(y), 0))
        tl.store(steps + at % HEADS * (num_vectors // HEADS) + at // HEADS, step)
        y = y / step
    tl.store(out + at * D + d, to_input_format(y, out.dtype.element_ty, INPUT_SCALE))


def attend_paged(
    qkv: Tensor,
    caches: tuple[Tensor, Tensor],
    rows: RowTables,
    shape: AttentionShape,
    workspace: AttentionWorkspace,
    merges: bool = True,
) -> Tensor:
    """qkv (rows, heads + 2 kv_heads, head_dim), rotated and with its KV written -> (rows, heads * head_dim), a view of
    `workspace.out`. head_dim must be a power of two, at least 16; splits a power of two. Without `merges` the next
    kernel merges the splits in `workspace`; there are then few rows, and a split has about one key block."""
    num_rows, heads, kv_heads = qkv.shape[0], shape.num_heads, shape.num_kv_heads
    parts, num_tiles = (workspace.acc, workspace.top, workspace.total), rows.tiles.shape[0]
    grid = (num_tiles, kv_heads, 1) if shape.splits == 1 else (shape.splits, kv_heads, num_tiles)
    if rows.tree_slots is not None:
        grid = (shape.splits * rows.num_shared + 2 * (num_tiles - rows.num_shared), kv_heads, 1)
    _attend_kernel[grid](
        qkv, qkv[:, heads:], qkv[:, heads + kv_heads :], *caches, workspace.out, *parts,
        rows.prefix_end, rows.span_start, rows.span_end, rows.tiles, rows.pages,
        rows.tiles if rows.tree_slots is None else rows.tree_slots,
        shape.head_dim**-0.5 * LOG2_E, qkv.stride(0), rows.pages.stride(0), num_rows, rows.num_shared,
        HEADS=heads, KV_HEADS=kv_heads, D=shape.head_dim, PAGE=rows.page_size,
        BLOCK_M=shape.block_m, BLOCK_N=key_block(shape), SPLITS=shape.splits,
        TREE=rows.tree_slots is not None, num_warps=4 if shape.block_m <= 64 else 8, num_stages=2 if merges else 1,
        **pdl_options(),
    )  # fmt: skip
    if shape.splits > 1 and merges:
        _merge_kernel[(num_rows * heads,)](
            workspace.out, workspace.out if workspace.steps is None else workspace.steps, *parts,
            rows.prefix_end, rows.span_start, rows.span_end, num_rows * heads,
            HEADS=heads, D=shape.head_dim, SPLITS=shape.splits, BLOCK_N=key_block(shape),
            INPUT_SCALE=workspace.input_scale,
            FP8=workspace.steps is not None, num_warps=1, **pdl_options(),
        )  # fmt: skip
    return workspace.out.view(num_rows, -1)


def key_block(shape: AttentionShape) -> int:
    """Keys per block: twice KEY_BLOCK for large tiles, if shared memory allows."""
    return 2 * KEY_BLOCK if shape.block_m > 64 and shape.head_dim <= 128 else KEY_BLOCK


def cut_tiles(segments: list[tuple[int, int]], tile_rows: int) -> list[tuple[int, int, int]]:
    """Segments as (first row, end row) -> tiles (segment, first row, end row) of at most `tile_rows` rows."""
    return [
        (index, start, min(start + tile_rows, end))
        for index, (first, end) in enumerate(segments)
        for start in range(first, end, tile_rows)
    ]
