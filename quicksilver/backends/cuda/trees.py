"""Draft trees of a verify round: they grow, one forward verifies their rows, and the way that proves right stays.

A tree's rows are causal. Row 0 is the last committed token and stands in the text; the others write their keys into
scratch slots of the cache. Each row reads the text by the page table and the rows before it on its way from their slots
(`RowTables.forks`), in the order of positions: so its numbers are those of a row that stood in the text, bit for bit,
and the keys of the way that proves right can simply be copied there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.kernels.attention import FORK_LEN, RowTables
from quicksilver.backends.cuda.kernels.launch import overlap, wait_turn
from quicksilver.backends.cuda.round_kernels import RoundState, commit
from quicksilver.backends.cuda.tree_kernels import bits, grown, proved
from quicksilver.model.attention import PagedCache

_FORK = tl.constexpr(1 + FORK_LEN)
_NO_FORK = tl.constexpr(2**30)
"""A position behind all keys."""
_ROW = np.arange(1 + FORK_LEN)
_CHAIN = np.stack((np.maximum(_ROW - 1, 0), _ROW, (2 << _ROW) - 1)).astype(np.int32)
"""The row before, the depth and the way of rows that stand one behind the other."""
_KEPT_AT_ONCE = 256
"""Numbers of a key that one program copies."""


def fork_table(shape: RoundShape) -> Tensor:
    """A line for every verify row; none forks."""
    assert shape.tree_rows <= 32, "a row's way is kept in 32 bits"
    assert shape.canvas_len - 1 <= FORK_LEN, "a row forks for as many tokens as are drafted"
    return torch.full((shape.num_verify, 1 + FORK_LEN), _NO_FORK.value, dtype=torch.int32)


def plant(tree: npt.NDArray[np.int32], token_ids: list[int]) -> None:
    """`tree` (4, rows), without rows yet: one token behind the other, the last committed one first."""
    count = len(token_ids)
    tree[0, :count] = token_ids
    tree[1:, :count] = _CHAIN[:, :count]


@triton.jit
def _tree_rows_kernel(
    last, position, choices, tree, columns, noise_at, pages, forks, first_slot, num_rows, max_pages,
    K: tl.constexpr, BLOCK_K: tl.constexpr, CHOICES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PAGE: tl.constexpr, GROWS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_turn(OVERLAPS)
    b = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    is_row = i < ROWS
    start = tl.load(position + b)
    mine = tree + 4 * b * ROWS + i
    if GROWS:
        root = tl.load(last + b)
        token, before, depth, line = grown(choices + 2 * b * K * CHOICES, root, K, ROWS, BLOCK, BLOCK_K)
        depth = tl.where(start >= 0, depth, -1)
        tl.store(mine, token, mask=is_row)
        tl.store(mine + ROWS, before.to(tl.int32), mask=is_row)
        tl.store(mine + 2 * ROWS, depth, mask=is_row)
        tl.store(mine + 3 * ROWS, line, mask=is_row)
    else:
        token = tl.load(mine, mask=is_row, other=0)
        depth, line = tl.load(mine + 2 * ROWS, mask=is_row, other=-1), tl.load(mine + 3 * ROWS, mask=is_row, other=0)
    is_live = (start >= 0) & (depth >= 0)
    at = tl.where(is_live, start + depth, 0)
    page = tl.load(pages + b * max_pages + start // PAGE, mask=(start >= 0) & (start // PAGE < max_pages), other=-1)
    own = first_slot + b * ROWS + i
    slot = tl.where(i == 0, tl.where(page >= 0, page * PAGE + start % PAGE, -1), own)
    out = columns + b * ROWS + i
    tl.store(out, tl.where(is_live, token, 0), mask=is_row)
    tl.store(out + num_rows, i * 0 - 1, mask=is_row)
    tl.store(out + 2 * num_rows, at, mask=is_row)
    tl.store(out + 3 * num_rows, tl.where(is_live, slot, -1), mask=is_row)
    tl.store(out + 4 * num_rows, tl.where(is_live, at + 1, 0), mask=is_row)
    for column in tl.static_range(5, 8):
        tl.store(out + column * num_rows, i * 0, mask=is_row)
    tl.store(noise_at + b * ROWS + i, at + 1, mask=is_row)
    table = forks + (b * ROWS + i) * _FORK
    # Rows without a token too: all rows of a tile fork at one position.
    tl.store(table, tl.where(start >= 0, start + 1, _NO_FORK), mask=is_row)
    is_on_way = ((line[:, None] & bits(i)[None, :]) != 0) & (depth > 0)[None, :] & (is_row & is_live)[:, None]
    tl.store(table[:, None] + depth[None, :], (own + 0 * depth)[None, :], mask=is_on_way)


@triton.jit
def _proved_kernel(
    raw, results, told, last, position, tree, way, text, text_len, num_raw, num_results,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Commit what proves right, and the causal model's own token behind it. The host is told of a draft that goes
    that way, and of the way's proposals."""
    wait_turn(OVERLAPS)
    b = tl.program_id(0)
    i, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    start = tl.load(position + b)
    mine, raw = tree + 4 * b * ROWS + i, raw + b * ROWS
    token, before = tl.load(mine, mask=i < ROWS, other=0), tl.load(mine + ROWS, mask=i < ROWS, other=0)
    depth = tl.load(mine + 2 * ROWS, mask=i < ROWS, other=-1)
    line = tl.load(mine + 3 * ROWS, mask=i < ROWS, other=0)
    accepted, end = proved(tl.load(raw + tl.maximum(before, 0)), token, depth, line, i)
    is_on_way = (tl.sum(tl.where(i == end, line, 0), 0) & bits(i)) != 0
    row = tl.sum(tl.where((k[:, None] == depth[None, :]) & is_on_way[None, :], i[None, :], 0), 1)
    tl.store(way + b * K + k, tl.where((k <= accepted) & (start >= 0), row, -1), mask=k < K)
    row = tl.where(k <= accepted, row, end)
    if start >= 0:
        proposed = tl.load(raw + row)
        for column in tl.static_range(4):
            says = tl.load(raw + column * num_raw + row)
            tl.store(results + column * num_results + b * K + k, says, mask=k < K)
        drafted = tl.load(told + b * K + 1 + k, mask=k < K - 1, other=-1)
        # Where the way ends the draft must differ, even if what was drafted behind another token happens to agree.
        tells = tl.where(k < accepted, proposed, tl.where(drafted == proposed, (proposed == 0).to(tl.int32), drafted))
        tl.store(told + b * K + 1 + k, tells, mask=(k <= accepted) & (k < K - 1))
        commit(proposed, accepted, b, start, k, last, position, text, text_len)


@triton.jit
def _keep_kernel(
    position, way, pages, k_cache, v_cache, first_slot, max_pages, layer_stride,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_W: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One program a (sequence, layer, part of a key)."""
    wait_turn(OVERLAPS)
    b, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    k, w = tl.arange(0, BLOCK_K), (tl.program_id(2) * BLOCK_W + tl.arange(0, BLOCK_W))[None, :]
    row = tl.load(way + b * K + k, mask=k < K, other=-1)
    at = tl.load(position + b) - 1 - tl.max(tl.where(row >= 0, k, -1), 0) + k
    is_kept = (row >= 0) & (k > 0)
    page = tl.load(pages + b * max_pages + at // PAGE, mask=is_kept & (at // PAGE < max_pages), other=-1)
    is_kept = (is_kept & (page >= 0))[:, None] & (w < WIDTH)
    source = layer * layer_stride + (first_slot + b * ROWS + row).to(tl.int64)[:, None] * WIDTH + w
    target = layer * layer_stride + (tl.maximum(page, 0).to(tl.int64) * PAGE + at % PAGE)[:, None] * WIDTH + w
    tl.store(k_cache + target, tl.load(k_cache + source, mask=is_kept), mask=is_kept)
    tl.store(v_cache + target, tl.load(v_cache + source, mask=is_kept), mask=is_kept)


def write_tree(
    state: RoundState, columns: Tensor, noise_at: Tensor, tables: RowTables, first_slot: int, grows: bool
) -> None:
    """As `transition.write_rows`, the rows of all trees; and which slots each reads, those from `first_slot` on being
    theirs. The trees are new ones of the choices that `take_draft` listed where `grows`, else as the state has them."""
    (num_sequences, canvas_len), rows = state.draft.shape, state.tree.shape[2]
    _tree_rows_kernel[(num_sequences,)](
        state.last, state.position, state.choices, state.tree, columns, noise_at, tables.pages, tables.forks,
        first_slot, columns.shape[1], tables.pages.stride(0), K=canvas_len,
        BLOCK_K=triton.next_power_of_2(canvas_len), CHOICES=state.choices.shape[3], ROWS=rows,
        BLOCK=triton.next_power_of_2(rows), PAGE=tables.page_size, GROWS=grows, num_warps=1, **overlap(),
    )  # fmt: skip


def take_proved(state: RoundState, raw: Tensor, results: Tensor, told: Tensor) -> None:
    """`raw` (4, rows): what the verify forward proposed. `results` (4, …) gets K columns a sequence, as if its draft
    had been the way that proved right; and `told`, the tokens that the draft forward proposed, gets that draft."""
    (num_sequences, canvas_len), rows = state.draft.shape, state.tree.shape[2]
    _proved_kernel[(num_sequences,)](
        raw, results, told, state.last, state.position, state.tree, state.way, state.text, state.text.shape[1],
        raw.shape[1], results.shape[1], K=canvas_len, BLOCK_K=triton.next_power_of_2(canvas_len), ROWS=rows,
        BLOCK=triton.next_power_of_2(rows), num_warps=1, **overlap(),
    )  # fmt: skip


def keep_way(state: RoundState, tables: RowTables, cache: PagedCache) -> None:
    """Copy the keys and values of what `take_proved` found right to where its tokens stand in the text."""
    (num_sequences, canvas_len), rows = state.draft.shape, state.tree.shape[2]
    width = cache.k.shape[2] * cache.k.shape[3]
    block = min(triton.next_power_of_2(width), _KEPT_AT_ONCE)
    _keep_kernel[(num_sequences, len(cache.k), triton.cdiv(width, block))](
        state.position, state.way, tables.pages, cache.k, cache.v, cache.num_paged, tables.pages.stride(0),
        cache.k.stride(0), K=canvas_len, BLOCK_K=triton.next_power_of_2(canvas_len), ROWS=rows, PAGE=cache.page_size,
        WIDTH=width, BLOCK_W=block, num_warps=4, **overlap(),
    )  # fmt: skip
