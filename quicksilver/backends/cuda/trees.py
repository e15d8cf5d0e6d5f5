"""Draft trees of a verify round: build the tree, verify all its rows in one forward, keep the accepted path.

Tree rows are causal. Row 0 is the last committed token and writes its KV into the text's pages; the other rows write
into scratch slots of the cache. Each row reads the text through the page table and its ancestors from their scratch
slots (`RowTables.tree_slots`), in the order of positions. Its values are therefore bit-identical to those of a row in
the text, and the KV of the accepted path can be copied there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.kernels.attention import MAX_TREE_DEPTH, RowTables
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch
from quicksilver.backends.cuda.round_kernels import RoundState, commit
from quicksilver.backends.cuda.tree_kernels import bits, build_tree, find_accepted
from quicksilver.model.attention import PagedCache

_TREE_STRIDE = tl.constexpr(1 + MAX_TREE_DEPTH)
# A position after all keys.
_NO_TREE = tl.constexpr(2**30)
_ROW = np.arange(1 + MAX_TREE_DEPTH)
# Parents, depths and ancestors of a single draft.
_CHAIN = np.stack((np.maximum(_ROW - 1, 0), _ROW, (2 << _ROW) - 1)).astype(np.int32)
# Values of a key that one program copies.
_COPY_BLOCK = 256


def tree_slot_table(shape: RoundShape) -> Tensor:
    """`RowTables.tree_slots` for all verify rows, without a tree yet."""
    assert shape.tree_rows <= 32, "ancestors are a 32-bit mask"
    assert shape.canvas_len - 1 <= MAX_TREE_DEPTH, "the table has one slot per drafted position"
    return torch.full((shape.num_verify, 1 + MAX_TREE_DEPTH), _NO_TREE.value, dtype=torch.int32)


def write_chain(tree: npt.NDArray[np.int32], token_ids: list[int]) -> None:
    """Write a single draft into the empty `tree` (4, rows). `token_ids` starts with the last committed token."""
    count = len(token_ids)
    tree[0, :count] = token_ids
    tree[1:, :count] = _CHAIN[:, :count]


@triton.jit
def _tree_rows_kernel(
    last, position, candidates, tree, columns, noise_positions, pages, tree_slots, first_slot, num_rows, max_pages,
    K: tl.constexpr, BLOCK_K: tl.constexpr, CANDIDATES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PAGE: tl.constexpr, BUILDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    b = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    is_row = i < ROWS
    start = tl.load(position + b)
    own_tree = tree + 4 * b * ROWS + i
    if BUILDS:
        root = tl.load(last + b)
        token, parent, depth, ancestors = build_tree(candidates + 2 * b * K * CANDIDATES, root, K, ROWS, BLOCK, BLOCK_K)
        depth = tl.where(start >= 0, depth, -1)
        tl.store(own_tree, token, mask=is_row)
        tl.store(own_tree + ROWS, parent.to(tl.int32), mask=is_row)
        tl.store(own_tree + 2 * ROWS, depth, mask=is_row)
        tl.store(own_tree + 3 * ROWS, ancestors, mask=is_row)
    else:
        token = tl.load(own_tree, mask=is_row, other=0)
        depth, ancestors = (
            tl.load(own_tree + 2 * ROWS, mask=is_row, other=-1),
            tl.load(own_tree + 3 * ROWS, mask=is_row, other=0),
        )
    is_live = (start >= 0) & (depth >= 0)
    at = tl.where(is_live, start + depth, 0)
    page = tl.load(pages + b * max_pages + start // PAGE, mask=(start >= 0) & (start // PAGE < max_pages), other=-1)
    own_slot = first_slot + b * ROWS + i
    slot = tl.where(i == 0, tl.where(page >= 0, page * PAGE + start % PAGE, -1), own_slot)
    out = columns + b * ROWS + i
    tl.store(out, tl.where(is_live, token, 0), mask=is_row)
    tl.store(out + num_rows, i * 0 - 1, mask=is_row)
    tl.store(out + 2 * num_rows, at, mask=is_row)
    tl.store(out + 3 * num_rows, tl.where(is_live, slot, -1), mask=is_row)
    tl.store(out + 4 * num_rows, tl.where(is_live, at + 1, 0), mask=is_row)
    for column in tl.static_range(5, 8):
        tl.store(out + column * num_rows, i * 0, mask=is_row)
    tl.store(noise_positions + b * ROWS + i, at + 1, mask=is_row)
    table = tree_slots + (b * ROWS + i) * _TREE_STRIDE
    # Also for rows without a token: all rows of a tile need the same start position.
    tl.store(table, tl.where(start >= 0, start + 1, _NO_TREE), mask=is_row)
    is_on_path = ((ancestors[:, None] & bits(i)[None, :]) != 0) & (depth > 0)[None, :] & (is_row & is_live)[:, None]
    tl.store(table[:, None] + depth[None, :], (own_slot + 0 * depth)[None, :], mask=is_on_path)


@triton.jit
def _accept_tree_kernel(
    raw, results, draft_tokens, last, position, tree, accepted_rows, text, text_len, num_raw, num_results,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Commit the accepted path and the causal model's token after it. For the host, the draft and the proposals are
    rewritten as if the accepted path had been the only draft."""
    pdl_wait_and_launch(PDL)
    b = tl.program_id(0)
    i, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    start = tl.load(position + b)
    own_tree, raw = tree + 4 * b * ROWS + i, raw + b * ROWS
    token, parent = tl.load(own_tree, mask=i < ROWS, other=0), tl.load(own_tree + ROWS, mask=i < ROWS, other=0)
    depth = tl.load(own_tree + 2 * ROWS, mask=i < ROWS, other=-1)
    ancestors = tl.load(own_tree + 3 * ROWS, mask=i < ROWS, other=0)
    accepted, end = find_accepted(tl.load(raw + tl.maximum(parent, 0)), token, depth, ancestors, i)
    is_on_path = (tl.sum(tl.where(i == end, ancestors, 0), 0) & bits(i)) != 0
    row = tl.sum(tl.where((k[:, None] == depth[None, :]) & is_on_path[None, :], i[None, :], 0), 1)
    tl.store(accepted_rows + b * K + k, tl.where((k <= accepted) & (start >= 0), row, -1), mask=k < K)
    row = tl.where(k <= accepted, row, end)
    if start >= 0:
        proposed = tl.load(raw + row)
        for column in tl.static_range(4):
            value = tl.load(raw + column * num_raw + row)
            tl.store(results + column * num_results + b * K + k, value, mask=k < K)
        drafted = tl.load(draft_tokens + b * K + 1 + k, mask=k < K - 1, other=-1)
        # The draft must differ where the path ends, even if the token drafted there for another parent agrees.
        new_draft = tl.where(
            k < accepted, proposed, tl.where(drafted == proposed, (proposed == 0).to(tl.int32), drafted)
        )
        tl.store(draft_tokens + b * K + 1 + k, new_draft, mask=(k <= accepted) & (k < K - 1))
        commit(proposed, accepted, b, start, k, last, position, text, text_len)


@triton.jit
def _copy_kv_kernel(
    position, accepted_rows, pages, k_cache, v_cache, first_slot, max_pages, layer_stride,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_W: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per (sequence, layer, part of a key)."""
    pdl_wait_and_launch(PDL)
    b, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    k, w = tl.arange(0, BLOCK_K), (tl.program_id(2) * BLOCK_W + tl.arange(0, BLOCK_W))[None, :]
    row = tl.load(accepted_rows + b * K + k, mask=k < K, other=-1)
    at = tl.load(position + b) - 1 - tl.max(tl.where(row >= 0, k, -1), 0) + k
    is_kept = (row >= 0) & (k > 0)
    page = tl.load(pages + b * max_pages + at // PAGE, mask=is_kept & (at // PAGE < max_pages), other=-1)
    is_kept = (is_kept & (page >= 0))[:, None] & (w < WIDTH)
    source = layer * layer_stride + (first_slot + b * ROWS + row).to(tl.int64)[:, None] * WIDTH + w
    target = layer * layer_stride + (tl.maximum(page, 0).to(tl.int64) * PAGE + at % PAGE)[:, None] * WIDTH + w
    tl.store(k_cache + target, tl.load(k_cache + source, mask=is_kept), mask=is_kept)
    tl.store(v_cache + target, tl.load(v_cache + source, mask=is_kept), mask=is_kept)


def write_tree(
    state: RoundState, columns: Tensor, noise_positions: Tensor, tables: RowTables, first_slot: int, builds: bool
) -> None:
    """As `round_kernels.write_rows`, for the rows of all trees, and the scratch slots that each row reads. Scratch
    slots start at `first_slot`. With `builds` the trees are built from the candidates of `store_draft`; otherwise the
    state holds them."""
    (num_sequences, canvas_len), rows = state.draft.shape, state.tree.shape[2]
    _tree_rows_kernel[(num_sequences,)](
        state.last, state.position, state.candidates, state.tree, columns, noise_positions, tables.pages,
        tables.tree_slots,
        first_slot, columns.shape[1], tables.pages.stride(0), K=canvas_len,
        BLOCK_K=triton.next_power_of_2(canvas_len), CANDIDATES=state.candidates.shape[3], ROWS=rows,
        BLOCK=triton.next_power_of_2(rows), PAGE=tables.page_size, BUILDS=builds, num_warps=1, **pdl_options(),
    )  # fmt: skip


def accept_tree(state: RoundState, raw: Tensor, results: Tensor, draft_tokens: Tensor) -> None:
    """`raw` (4, rows): proposals of the verify forward. `results` (4, ...) receives K columns per sequence as if the
    accepted path had been the draft; `draft_tokens`, the proposals of the draft forward, receives that draft."""
    (num_sequences, canvas_len), rows = state.draft.shape, state.tree.shape[2]
    _accept_tree_kernel[(num_sequences,)](
        raw, results, draft_tokens, state.last, state.position, state.tree, state.accepted_rows, state.text,
        state.text.shape[1],
        raw.shape[1], results.shape[1], K=canvas_len, BLOCK_K=triton.next_power_of_2(canvas_len), ROWS=rows,
        BLOCK=triton.next_power_of_2(rows), num_warps=1, **pdl_options(),
    )  # fmt: skip


def copy_accepted_kv(state: RoundState, tables: RowTables, cache: PagedCache) -> None:
    """Copy the KV of the path that `accept_tree` accepted from the scratch slots to the text's pages."""
    (num_sequences, canvas_len), rows = state.draft.shape, state.tree.shape[2]
    width = cache.k.shape[2] * cache.k.shape[3]
    block = min(triton.next_power_of_2(width), _COPY_BLOCK)
    _copy_kv_kernel[(num_sequences, len(cache.k), triton.cdiv(width, block))](
        state.position, state.accepted_rows, tables.pages, cache.k, cache.v, cache.num_paged, tables.pages.stride(0),
        cache.k.stride(0), K=canvas_len, BLOCK_K=triton.next_power_of_2(canvas_len), ROWS=rows, PAGE=cache.page_size,
        WIDTH=width, BLOCK_W=block, num_warps=4, **pdl_options(),
    )  # fmt: skip
