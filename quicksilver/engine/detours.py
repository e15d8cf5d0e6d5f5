"""Detours of a verify round: their rows behind the verify rows, and the keys of the one that wins.

A detour's rows are causal and write their keys into scratch slots of the cache. They read the text and the draft up to
their place by the page table and what is behind it from there (`RowTables.forks`), in the order of positions: so their
numbers are those of rows that stood in the text, bit for bit, and the winner's keys can simply be copied there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.engine.detour_kernels import num_right, won
from quicksilver.engine.flight import DETOUR_LEN, RoundShape
from quicksilver.engine.transition import RoundState
from quicksilver.model.attention import PagedCache
from quicksilver.model.kernels.attention import RowTables
from quicksilver.model.kernels.launch import overlap, wait_turn

NO_FORK = 2**31 - 1


def fork_table(shape: RoundShape, num_tiles: int, first_slot: int) -> Tensor:
    """For `num_tiles` tiles, the last of which are the detours', one each; all forks closed."""
    count = shape.num_sequences * shape.num_detours
    forks = torch.full((num_tiles, 2), NO_FORK, dtype=torch.int32)
    forks[num_tiles - count :, 1] = first_slot + DETOUR_LEN * torch.arange(count)
    return forks


@triton.jit
def _detours_kernel(
    position, draft, detours, columns, noise_at, forks, first_row, num_rows,
    K: tl.constexpr, DETOURS: tl.constexpr, LEN: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_turn(OVERLAPS)
    b = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    is_row = c < DETOURS * LEN
    detour, i = b * DETOURS + c // LEN, c % LEN
    start = tl.load(position + b)
    place = tl.load(detours + 2 * detour, mask=is_row, other=-1)
    is_live = (start >= 0) & (place >= 0) & (place + i < K - 1)
    takes = tl.load(detours + 2 * detour + 1, mask=is_row & is_live, other=0)
    follows = tl.load(draft + b * K + place + i, mask=is_row & is_live, other=0)
    at = tl.where(is_live, start + 1 + place + i, 0)
    own = tl.load(forks + 2 * detour + 1, mask=is_row, other=0)
    out = columns + first_row + b * DETOURS * LEN + c
    tl.store(out, tl.where(i == 0, takes, follows), mask=is_row)
    tl.store(out + num_rows, c * 0 - 1, mask=is_row)
    tl.store(out + 2 * num_rows, at, mask=is_row)
    tl.store(out + 3 * num_rows, tl.where(is_live, own + i, -1), mask=is_row)
    tl.store(out + 4 * num_rows, tl.where(is_live, at + 1, 0), mask=is_row)
    for column in tl.static_range(5, 8):
        tl.store(out + column * num_rows, c * 0, mask=is_row)
    tl.store(noise_at + first_row + b * DETOURS * LEN + c, at + 1, mask=is_row)
    tl.store(forks + 2 * detour, start + 1 + place, mask=is_row & (i == 0))


@triton.jit
def _keep_kernel(
    tokens, position, draft, detours, pages, k_cache, v_cache, first_detour, first_slot, max_pages, layer_stride,
    K: tl.constexpr, BLOCK: tl.constexpr, DETOURS: tl.constexpr, LEN: tl.constexpr, PAGE: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One program a (sequence, layer)."""
    wait_turn(OVERLAPS)
    b, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BLOCK)
    start = tl.load(position + b)
    proposed = tl.load(tokens + b * K + k, mask=k < K, other=0)
    drafted = tl.load(draft + b * K + k, mask=k < K - 1, other=-1)
    place, index = won(detours, proposed, drafted, b, k, K, DETOURS)
    if (start >= 0) & (index >= 0):
        count = 1 + num_right(tokens, drafted, first_detour + (b * DETOURS + index) * LEN, place, k, K, LEN)
        i, w = tl.arange(0, LEN), tl.arange(0, BLOCK_W)[None, :]
        at = start + 1 + place + i
        page = tl.load(pages + b * max_pages + at // PAGE, mask=(i < count) & (at // PAGE < max_pages), other=-1)
        is_kept = ((i < count) & (page >= 0))[:, None] & (w < WIDTH)
        source = layer * layer_stride + (first_slot + (b * DETOURS + index) * LEN + i).to(tl.int64)[:, None] * WIDTH + w
        target = layer * layer_stride + (tl.maximum(page, 0).to(tl.int64) * PAGE + at % PAGE)[:, None] * WIDTH + w
        tl.store(k_cache + target, tl.load(k_cache + source, mask=is_kept), mask=is_kept)
        tl.store(v_cache + target, tl.load(v_cache + source, mask=is_kept), mask=is_kept)


def write_detours(state: RoundState, columns: Tensor, noise_at: Tensor, forks: Tensor) -> None:
    """Behind the verify rows of `write_rows`, the detours' rows; and where their tiles, the last of `forks`, leave the
    page table."""
    (num_sequences, canvas_len), num_detours = state.draft.shape, state.detours.shape[1]
    _detours_kernel[(num_sequences,)](
        state.position, state.draft, state.detours, columns, noise_at, forks[-num_sequences * num_detours :],
        num_sequences * canvas_len, columns.shape[1],
        K=canvas_len, DETOURS=num_detours, LEN=DETOUR_LEN, BLOCK=triton.next_power_of_2(num_detours * DETOUR_LEN),
        num_warps=1, **overlap(),
    )  # fmt: skip


def keep_winner(state: RoundState, tokens: Tensor, tables: RowTables, cache: PagedCache) -> None:
    """Copy the keys and values of the detour that wins to where its tokens stand in the text. `tokens` (rows,): what
    the verify forward proposed; to be called before `take_verified` goes on."""
    (num_sequences, canvas_len), num_detours = state.draft.shape, state.detours.shape[1]
    width = cache.k.shape[2] * cache.k.shape[3]
    _keep_kernel[(num_sequences, len(cache.k))](
        tokens, state.position, state.draft, state.detours, tables.pages, cache.k, cache.v,
        num_sequences * canvas_len, cache.num_paged, tables.pages.stride(0), cache.k.stride(0),
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len), DETOURS=num_detours, LEN=DETOUR_LEN,
        PAGE=cache.page_size, WIDTH=width, BLOCK_W=triton.next_power_of_2(width), num_warps=4, **overlap(),
    )  # fmt: skip
