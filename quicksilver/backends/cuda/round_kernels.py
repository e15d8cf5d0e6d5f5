"""The device-side state of verify rounds, and the small kernels before and after each forward: state -> rows, and
proposals -> state. The same arithmetic as `diffusion/verify.py` and `backends/batch.py`, without the host.

Sequence b owns rows [b * K, (b + 1) * K) for a canvas of K tokens. A negative position marks an unused sequence, whose
rows write nothing. The verify forward of a draft tree has a different row layout (`trees.py`).
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
from quicksilver.backends.cuda.kernels.launch import pdl_options, pdl_wait_and_launch
from quicksilver.backends.cuda.prompt_lookup_kernel import apply_prompt_lookup
from quicksilver.backends.cuda.tree_kernels import NUM_CANDIDATES, store_candidates


class RoundArrays(NamedTuple):
    """numpy views of the parts of a RoundState that the host writes. They are cheaper to write than tensors."""

    buffer: npt.NDArray[np.int32]
    last: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    draft: npt.NDArray[np.int32]
    tree: npt.NDArray[np.int32]
    pages: npt.NDArray[np.int32]
    text: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RoundState:
    """All int32; -1 is unset."""

    # `last` to `pages` in one allocation, so that one copy transfers them.
    buffer: Tensor
    last: Tensor  # (sequences,): the last committed token
    position: Tensor  # (sequences,): its position
    draft: Tensor  # (sequences, K): K - 1 drafted tokens
    # (sequences, 4, tree rows): token, parent row, depth below the last committed token, and ancestors as a bitmask
    # that includes the row itself.
    tree: Tensor
    pages: Tensor  # (sequences, max pages): page tables
    # (sequences, 2, K, NUM_CANDIDATES): candidate tokens of each drafted position, and their probabilities as fp32
    # bits.
    candidates: Tensor
    accepted_rows: Tensor  # (sequences, K): tree rows accepted in the last round, by depth
    text: Tensor  # (sequences, context_len): the token at each position, for prompt lookup

    @classmethod
    def allocate(
        cls, shape: RoundShape, context_len: int, device: torch.device | str, max_pages: int = 0
    ) -> RoundState:
        """A state without sequences."""
        count, canvas_len = shape.num_sequences, shape.canvas_len
        buffer = torch.full((sum(_part_sizes(shape, max_pages)),), -1, dtype=torch.int32, device=device)
        num_candidates = NUM_CANDIDATES if shape.tree_rows else 0
        candidates = torch.zeros(count, 2, canvas_len, num_candidates, dtype=torch.int32, device=device)
        accepted_rows = torch.full((count, canvas_len), -1, dtype=torch.int32, device=device)
        text = torch.zeros(count, context_len, dtype=torch.int32, device=device)
        return cls._over(shape, buffer, max_pages, (candidates, accepted_rows, text))

    def host_copy(self, shape: RoundShape) -> RoundState:
        """A pinned copy that the host fills and copies from."""
        buffer, text = (t.cpu().pin_memory() if t.is_cuda else t.clone() for t in (self.buffer, self.text))
        return self._over(shape, buffer, self.pages.shape[1], (self.candidates, self.accepted_rows, text))

    def arrays(self) -> RoundArrays:
        """Views of a host copy."""
        return RoundArrays(*(getattr(self, name).numpy() for name in RoundArrays._fields))

    @classmethod
    def _over(
        cls, shape: RoundShape, buffer: Tensor, max_pages: int, others: tuple[Tensor, Tensor, Tensor]
    ) -> RoundState:
        count = shape.num_sequences
        last, position, draft, tree, pages = buffer.split(_part_sizes(shape, max_pages))
        draft = draft[: count * shape.canvas_len].view(count, shape.canvas_len)
        tree = tree[: 4 * count * shape.tree_rows].view(count, 4, shape.tree_rows)
        pages = pages[: count * max_pages].view(count, max_pages)
        return cls(buffer, last[:count], position[:count], draft, tree, pages, *others)


def _part_sizes(shape: RoundShape, max_pages: int) -> list[int]:
    """int32 values of each part, rounded up so that every part starts at a multiple of 16 bytes."""
    count = shape.num_sequences
    sizes = (count, count, count * shape.canvas_len, 4 * count * shape.tree_rows, count * max_pages)
    return [-(-size // 4) * 4 for size in sizes]


@triton.jit
def _rows_kernel(
    last, position, draft, columns, noise_positions, pages, num_rows, max_pages,
    K: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, IS_DRAFT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait_and_launch(PDL)
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    is_row = k < K
    start = tl.load(position + b)
    at = start + k
    is_live = start >= 0
    is_causal = (k == 0) if IS_DRAFT else is_row
    drafted = tl.load(draft + b * K + k - 1, mask=is_row & (k > 0), other=0)
    # A draft of -1 is unset and never accepted.
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
    tl.store(noise_positions + b * K + k, tl.maximum(at, 0) + 1, mask=is_row)


@triton.jit
def _store_draft_kernel(
    tokens, confidence, runners_up, last, position, draft, candidates, text, text_len, num_rows,
    K: tl.constexpr, BLOCK: tl.constexpr, CANDIDATES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Commit the first proposal, which is the causal model's. Store the others as the draft, replaced by prompt lookup
    where it matches; the proposals are updated too. For a tree, also store the candidates of each position."""
    pdl_wait_and_launch(PDL)
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    start = tl.load(position + b)
    first = tl.load(tokens + b * K)
    drafted = tl.load(tokens + b * K + 1 + k, mask=k < K - 1, other=0)
    if start >= 0:
        if K > 1:
            own_text = text + b.to(tl.int64) * text_len
            end = tl.minimum(start + 1, text_len - 1)
            tl.store(own_text + end, first)
            tl.debug_barrier()
            confidence_bits = tl.load(confidence + b * K + 1 + k, mask=k < K - 1, other=0)
            canvas_draft = drafted
            drafted, from_lookup = apply_prompt_lookup(own_text, end, drafted, confidence_bits, k, K - 1)
            if CANDIDATES:
                out = candidates + 2 * b * K * CANDIDATES
                store_candidates(
                    canvas_draft, drafted, from_lookup, confidence_bits, runners_up + b * K + 1, num_rows, out, k, K
                )
            tl.store(draft + b * K + k, drafted, mask=k < K - 1)
            tl.store(tokens + b * K + 1 + k, drafted, mask=k < K - 1)
        tl.store(last + b, first)
        tl.store(position + b, start + 1)


@triton.jit
def commit(proposed, accepted, b, start, k, last, position, text, text_len):
    """Append the first `accepted` + 1 proposals to a sequence."""
    at = start + 1 + k
    tl.store(text + b.to(tl.int64) * text_len + at, proposed, mask=(k <= accepted) & (at < text_len))
    tl.store(last + b, tl.sum(tl.where(k == accepted, proposed, 0), 0))
    tl.store(position + b, start + accepted + 1)


@triton.jit
def _accept_kernel(
    tokens, last, position, draft, text, text_len, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Commit the proposals up to and including the first one that differs from the draft."""
    pdl_wait_and_launch(PDL)
    b = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    start = tl.load(position + b)
    proposed = tl.load(tokens + b * K + k, mask=k < K, other=0)
    drafted = tl.load(draft + b * K + k, mask=k < K - 1, other=-1)
    accepted = tl.min(tl.where((proposed == drafted) & (k < K - 1), K, k), 0)
    if start >= 0:
        commit(proposed, accepted, b, start, k, last, position, text, text_len)


def write_rows(
    state: RoundState, columns: Tensor, noise_positions: Tensor, pages: Tensor, page_size: int, is_draft: bool
) -> None:
    """Fill `columns` (8, rows) in the layout of `buffers.RowBuffers`, and the positions that key the noise."""
    num_sequences, canvas_len = state.draft.shape
    _rows_kernel[(num_sequences,)](
        state.last, state.position, state.draft, columns, noise_positions, pages, columns.shape[1], pages.stride(0),
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len), PAGE=page_size, IS_DRAFT=is_draft,
        num_warps=1, **pdl_options(),
    )  # fmt: skip


def store_draft(state: RoundState, results: Tensor, runners_up: Tensor | None = None) -> None:
    """`results` (tokens, confidence, ...; rows): proposals of the draft forward. `runners_up`: the head's next-best
    tokens, for a tree."""
    num_sequences, canvas_len = state.draft.shape
    _store_draft_kernel[(num_sequences,)](
        results[0], results[1], results if runners_up is None else runners_up,
        state.last, state.position, state.draft, state.candidates, state.text, state.text.shape[1], results.shape[1],
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len), CANDIDATES=state.candidates.shape[3], num_warps=4,
        **pdl_options(),
    )  # fmt: skip


def accept_verified(state: RoundState, results: Tensor) -> None:
    """`results` (tokens, ...; rows): proposals of the verify forward."""
    num_sequences, canvas_len = state.draft.shape
    _accept_kernel[(num_sequences,)](
        results[0], state.last, state.position, state.draft, state.text, state.text.shape[1],
        K=canvas_len, BLOCK=triton.next_power_of_2(canvas_len), num_warps=1, **pdl_options(),
    )  # fmt: skip
