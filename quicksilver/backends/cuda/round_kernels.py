"""A verify round's state on the device, and the two small kernels around each of its forwards: state -> rows, proposals
-> state. The same arithmetic as `diffusion/verify.py` and `backends/batch.py`, without the host in between.

Sequence b owns rows [b * K, (b + 1) * K). A sequence whose position is negative is a gap: its rows write nothing. Where
a round is one forward, K sets of K - 1 masks follow behind all those rows: set a drafts what comes if exactly a drafted
tokens prove right. Where drafts are a tree (`trees.py`), the verify forward has rows of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.kernels.launch import overlap, wait_turn
from quicksilver.backends.cuda.prompt_lookup_kernel import recalled
from quicksilver.backends.cuda.tree_kernels import NUM_CHOICES, list_choices


class RoundArrays(NamedTuple):
    """What the host writes of a RoundState, as arrays: cheaper to write than tensors."""

    cells: npt.NDArray[np.int32]
    last: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    draft: npt.NDArray[np.int32]
    tree: npt.NDArray[np.int32]
    pages: npt.NDArray[np.int32]
    text: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RoundState:
    """int32. `last` is the last committed token and `position` its place; `draft` holds K - 1 tokens of K columns, or
    -1 for none."""

    cells: Tensor
    """All of it, for one copy."""
    last: Tensor  # (sequences,)
    position: Tensor  # (sequences,)
    draft: Tensor  # (sequences, K)
    tree: Tensor
    """(sequences, 4, tree rows): of each row its token, the row before it, how far behind the last committed token it
    stands, and a bit for every row on the way to it, itself among them; a depth of -1 for none."""
    pages: Tensor
    """(sequences, most pages of one): page tables, -1 for none."""
    choices: Tensor
    """(sequences, 2, K, NUM_CHOICES): tokens that may stand at each drafted place, and how likely, fp32 bit for bit;
    not in `cells`."""
    way: Tensor
    """(sequences, K): the tree's rows that proved right last, by their depth; -1 behind them. Not in `cells`."""
    text: Tensor
    """(sequences, context_len): the token at each position, as far back as drafts are recalled from. Not in `cells`."""

    @classmethod
    def allocate(
        cls, shape: RoundShape, context_len: int, device: torch.device | str, max_pages: int = 0
    ) -> RoundState:
        """All gaps."""
        count, canvas_len = shape.num_sequences, shape.canvas_len
        cells = torch.full((sum(_cells(shape, max_pages)),), -1, dtype=torch.int32, device=device)
        num_choices = NUM_CHOICES if shape.tree_rows else 0
        choices = torch.zeros(count, 2, canvas_len, num_choices, dtype=torch.int32, device=device)
        way = torch.full((count, canvas_len), -1, dtype=torch.int32, device=device)
        text = torch.zeros(count, context_len, dtype=torch.int32, device=device)
        return cls._over(shape, cells, max_pages, (choices, way, text))

    def on_host(self, shape: RoundShape) -> RoundState:
        """A twin to fill and copy from."""
        cells, text = (t.cpu().pin_memory() if t.is_cuda else t.clone() for t in (self.cells, self.text))
        return self._over(shape, cells, self.pages.shape[1], (self.choices, self.way, text))

    def arrays(self) -> RoundArrays:
        """Views of a twin on the host."""
        return RoundArrays(*(getattr(self, name).numpy() for name in RoundArrays._fields))

    @classmethod
    def _over(
        cls, shape: RoundShape, cells: Tensor, max_pages: int, others: tuple[Tensor, Tensor, Tensor]
    ) -> RoundState:
        count = shape.num_sequences
        last, position, draft, tree, pages = cells.split(_cells(shape, max_pages))
        draft = draft[: count * shape.canvas_len].view(count, shape.canvas_len)
        tree = tree[: 4 * count * shape.tree_rows].view(count, 4, shape.tree_rows)
        pages = pages[: count * max_pages].view(count, max_pages)
        return cls(cells, last[:count], position[:count], draft, tree, pages, *others)


def _cells(shape: RoundShape, max_pages: int) -> list[int]:
    """Cells of the parts, each of which begins at a multiple of 16 bytes."""
    count = shape.num_sequences
    sizes = (count, count, count * shape.canvas_len, 4 * count * shape.tree_rows, count * max_pages)
    return [-(-size // 4) * 4 for size in sizes]


@triton.jit
def _rows_kernel(
    last, position, draft, columns, noise_at, pages, num_rows, max_pages,
    K: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, IS_DRAFT: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_turn(OVERLAPS)
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    is_row = k < K
    start = tl.load(position + b)
    at = start + k
    is_live = start >= 0
    is_causal = (k == 0) if IS_DRAFT else is_row
    drafted = tl.load(draft + b * K + k - 1, mask=is_row & (k > 0), other=0)
    # A draft of -1 stands for none: it agrees with nothing.
    token = tl.where(k == 0, tl.load(last + b), tl.maximum(drafted, 0))
    token = tl.where(is_causal & is_live, token, 0)
    page = tl.load(pages + b * max_pages + at // PAGE, mask=is_row & is_live & (at // PAGE < max_pages), other=-1)
    slot = tl.where(is_causal & is_live & (page >= 0), page * PAGE + at % PAGE, -1)
    sees_to = tl.where(is_causal, at + 1, start + 1)
    out = columns + b * K + k
    in_canvas = is_live & (k > 0) if IS_DRAFT else k < 0
    tl.store(out, token, mask=is_row)
    tl.store(out + num_rows, tl.where(in_canvas, k - 1, -1), mask=is_row)
    tl.store(out + 2 * num_rows, tl.maximum(at, 0), mask=is_row)
    tl.store(out + 3 * num_rows, slot, mask=is_row)
    tl.store(out + 4 * num_rows, tl.where(is_live, sees_to, 0), mask=is_row)
    tl.store(out + 5 * num_rows, tl.where(in_canvas, b * K + 1, 0), mask=is_row)
    tl.store(out + 6 * num_rows, tl.where(in_canvas, b * K + K, 0), mask=is_row)
    tl.store(out + 7 * num_rows, in_canvas.to(tl.int32), mask=is_row)
    tl.store(noise_at + b * K + k, tl.maximum(at, 0) + 1, mask=is_row)


@triton.jit
def _drafted_kernel(
    tokens, confidence, runners_up, last, position, draft, choices, text, text_len, num_rows,
    K: tl.constexpr, BLOCK: tl.constexpr, CHOICES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The first proposal is the causal model's own and commits; the others are the draft, unless the text recalls
    another, which then stands among the proposals too. Where a tree grows, also what else may stand at each place."""
    wait_turn(OVERLAPS)
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    start = tl.load(position + b)
    first = tl.load(tokens + b * K)
    drafted = tl.load(tokens + b * K + 1 + k, mask=k < K - 1, other=0)
    if start >= 0:
        if K > 1:
            mine = text + b.to(tl.int64) * text_len
            end = tl.minimum(start + 1, text_len - 1)
            tl.store(mine + end, first)
            tl.debug_barrier()
            sure = tl.load(confidence + b * K + 1 + k, mask=k < K - 1, other=0)
            own = drafted
            drafted, is_recalled = recalled(mine, end, drafted, sure, k, K - 1)
            if CHOICES:
                out = choices + 2 * b * K * CHOICES
                list_choices(own, drafted, is_recalled, sure, runners_up + b * K + 1, num_rows, out, k, K)
            tl.store(draft + b * K + k, drafted, mask=k < K - 1)
            tl.store(tokens + b * K + 1 + k, drafted, mask=k < K - 1)
        tl.store(last + b, first)
        tl.store(position + b, start + 1)


@triton.jit
def commit(proposed, accepted, b, start, k, last, position, text, text_len):
    """A sequence goes on by its first `accepted` + 1 proposals."""
    at = start + 1 + k
    tl.store(text + b.to(tl.int64) * text_len + at, proposed, mask=(k <= accepted) & (at < text_len))
    tl.store(last + b, tl.sum(tl.where(k == accepted, proposed, 0), 0))
    tl.store(position + b, start + accepted + 1)


@triton.jit
def _verified_kernel(
    tokens, last, position, draft, text, text_len, K: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr
):
    """Commit the proposals up to and including the first that contradicts the draft."""
    wait_turn(OVERLAPS)
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    start = tl.load(position + b)
    proposed = tl.load(tokens + b * K + k, mask=k < K, other=0)
    drafted = tl.load(draft + b * K + k, mask=k < K - 1, other=-1)
    accepted = tl.min(tl.where((proposed == drafted) & (k < K - 1), K, k), 0)
    if start >= 0:
        commit(proposed, accepted, b, start, k, last, position, text, text_len)


@triton.jit
def _sets_kernel(
    position, columns, noise_at, first_row, first_noise, num_rows, last_position,
    K: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_turn(OVERLAPS)
    b = tl.program_id(0)
    MASKS: tl.constexpr = K * (K - 1)
    c = tl.arange(0, BLOCK)
    is_row = c < MASKS
    accepted, index = c // (K - 1), c % (K - 1)
    start = tl.load(position + b)
    is_live = start >= 0
    at = tl.minimum(tl.maximum(start + accepted + 1 + index, 0), last_position)
    span = first_row + b * MASKS + accepted * (K - 1)
    out = columns + first_row + b * MASKS + c
    tl.store(out, c * 0, mask=is_row)
    tl.store(out + num_rows, index, mask=is_row)
    tl.store(out + 2 * num_rows, at, mask=is_row)
    tl.store(out + 3 * num_rows, c * 0 - 1, mask=is_row)
    tl.store(out + 4 * num_rows, tl.where(is_live, start + accepted + 1, 0), mask=is_row)
    tl.store(out + 5 * num_rows, tl.where(is_live, span, 0), mask=is_row)
    tl.store(out + 6 * num_rows, tl.where(is_live, span + K - 1, 0), mask=is_row)
    tl.store(out + 7 * num_rows, c * 0 + 1, mask=is_row)
    tl.store(noise_at + first_noise + b * MASKS + c, at + 1, mask=is_row)


@triton.jit
def _chosen_kernel(
    tokens, confidence, last, position, draft, text, text_len, first_set,
    K: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """As `_verified_kernel`; and the set behind the last accepted token becomes the next draft, or what is recalled."""
    wait_turn(OVERLAPS)
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    start = tl.load(position + b)
    proposed = tl.load(tokens + b * K + k, mask=k < K, other=0)
    drafted = tl.load(draft + b * K + k, mask=k < K - 1, other=-1)
    accepted = tl.min(tl.where((proposed == drafted) & (k < K - 1), K, k), 0)
    is_next = k < K - 1
    chosen = first_set + (b * K + accepted) * (K - 1) + k
    following = tl.load(tokens + chosen, mask=is_next, other=0)
    if start >= 0:
        commit(proposed, accepted, b, start, k, last, position, text, text_len)
        tl.debug_barrier()
        sure = tl.load(confidence + chosen, mask=is_next, other=0)
        mine = text + b.to(tl.int64) * text_len
        following, _ = recalled(mine, tl.minimum(start + accepted + 1, text_len - 1), following, sure, k, K - 1)
        tl.store(tokens + chosen, following, mask=is_next)
        tl.store(draft + b * K + k, following, mask=is_next)


def write_sets(
    state: RoundState, columns: Tensor, noise_at: Tensor, first: tuple[int, int], last_position: int
) -> None:
    """The masks of every set, behind the rows that `write_rows` makes: `first` names where they begin among the rows
    and among the proposals."""
    num_sequences, canvas_len = state.draft.shape
    _sets_kernel[(num_sequences,)](
        state.position, columns, noise_at, *first, columns.shape[1], last_position,
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len * (canvas_len - 1)), num_warps=1, **overlap(),
    )  # fmt: skip


def take_chosen(state: RoundState, results: Tensor) -> None:
    """`results` (tokens, confidence, …; rows): what a forward with sets proposed, first every sequence's verify rows,
    then every sequence's sets."""
    num_sequences, canvas_len = state.draft.shape
    _chosen_kernel[(num_sequences,)](
        results[0], results[1], state.last, state.position, state.draft, state.text, state.text.shape[1],
        num_sequences * canvas_len,
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len), num_warps=4, **overlap(),
    )  # fmt: skip


def write_rows(
    state: RoundState, columns: Tensor, noise_at: Tensor, pages: Tensor, page_size: int, is_draft: bool
) -> None:
    """Fill `columns` (8, rows) as `graphs.RowBuffers` lays them out, and the positions that key the noise."""
    num_sequences, canvas_len = state.draft.shape
    _rows_kernel[(num_sequences,)](
        state.last, state.position, state.draft, columns, noise_at, pages, columns.shape[1], pages.stride(0),
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len), PAGE=page_size, IS_DRAFT=is_draft,
        num_warps=1, **overlap(),
    )  # fmt: skip


def take_draft(state: RoundState, results: Tensor, runners_up: Tensor | None = None) -> None:
    """`results` (tokens, confidence, …; rows): what the draft forward proposed; `runners_up` as the head leaves them,
    where a tree is to grow."""
    num_sequences, canvas_len = state.draft.shape
    _drafted_kernel[(num_sequences,)](
        results[0], results[1], results if runners_up is None else runners_up,
        state.last, state.position, state.draft, state.choices, state.text, state.text.shape[1], results.shape[1],
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len), CHOICES=state.choices.shape[3], num_warps=4,
        **overlap(),
    )  # fmt: skip


def take_verified(state: RoundState, results: Tensor) -> None:
    """`results` (tokens, …; rows): what the verify forward proposed."""
    num_sequences, canvas_len = state.draft.shape
    _verified_kernel[(num_sequences,)](
        results[0], state.last, state.position, state.draft, state.text, state.text.shape[1],
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len), num_warps=1, **overlap(),
    )  # fmt: skip
