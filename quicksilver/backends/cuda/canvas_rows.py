"""Fixed buffers of the proposing rows of random canvases: which rows, their sampling parameters, and the results."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.backends.cuda.buffers import StreamMarker, split_proposals, uses_pinned_memory
from quicksilver.backends.cuda.kernels.canvas_head import NUM_RESULTS, CanvasDraws
from quicksilver.backends.cuda.logit_bias import has_plain_sampling
from quicksilver.core import DecoderName
from quicksilver.diffusion.canvas import step_temperature
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.score import Scorer

# Distinct sets of banned tokens that stay on the device.
_MAX_BANS = 1024


def fits_canvas_head(sequence: Sequence) -> bool:
    """Whether the kernels can serve the request: greedy or temperature sampling and banned tokens, without a grammar,
    bias, penalties and logprobs."""
    params = sequence.request.params
    if isinstance(sequence.decoder, Scorer) or params.decoder.name is not DecoderName.CANVAS:
        return False
    return not params.logit_bias and sequence.constraint is None and has_plain_sampling(params)


@dataclass(frozen=True, slots=True)
class ProposingRows:
    """On the device, for one head."""

    index: Tensor  # (rows,) int64: rows of the forward
    draws: CanvasDraws
    bans: list[tuple[slice, Tensor]]  # rows, and the tokens that they must not propose
    results: Tensor  # (NUM_RESULTS, rows) int32


class CanvasRows:
    """At most `max_rows` rows at a time. `fill`, then the kernels, `send_results` and `read`."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        is_pinned = uses_pinned_memory()
        # index, seeds, positions, steps; then step temperature and temperature.
        self._host_ints = torch.zeros(4, max_rows, dtype=torch.int64, pin_memory=is_pinned)
        self._host_floats = torch.zeros(2, max_rows, pin_memory=is_pinned)
        self._ints, self._floats = self._host_ints.to(device), self._host_floats.to(device)
        self._results = torch.zeros(NUM_RESULTS * max_rows, dtype=torch.int32, device=device)
        self._host_results = torch.zeros(NUM_RESULTS * max_rows, dtype=torch.int32, pin_memory=is_pinned)
        self._bans: dict[tuple[int, ...], Tensor] = {}
        self._results_sent, self._device = StreamMarker(device), device

    def fill(self, proposing: Tensor, works: Seq[Work]) -> ProposingRows:
        """`proposing`: the proposing rows of `works`. The results of the call before must have been read."""
        count, start, bans = len(proposing), 0, list[tuple[slice, Tensor]]()
        ints, floats = self._host_ints.numpy(), self._host_floats.numpy()
        ints[0, :count] = proposing.numpy()
        for work in works:
            at, sequence = slice(start, start + work.num_proposals), work.sequence
            params, canvas = sequence.request.params, sequence.canvas
            start = at.stop
            if not work.num_proposals:
                continue
            assert canvas is not None
            first = len(sequence.tokens)
            ints[1, at], ints[2, at], ints[3, at] = params.seed, range(first, first + work.num_proposals), canvas.step
            floats[0, at], floats[1, at] = step_temperature(params.decoder, canvas.step), params.temperature
            if params.banned_ids:
                bans.append((at, self._banned(tuple(params.banned_ids))))
        self._ints[:, :count].copy_(self._host_ints[:, :count], non_blocking=True)
        self._floats[:, :count].copy_(self._host_floats[:, :count], non_blocking=True)
        index, seeds, positions, steps = self._ints[:, :count]
        draws = CanvasDraws(self._floats[0, :count], self._floats[1, :count], seeds, positions, steps)
        return ProposingRows(index, draws, bans, self.results(count))

    def results(self, count: int) -> Tensor:
        """The buffer of the results on the device, (NUM_RESULTS, count)."""
        return self._results[: NUM_RESULTS * count].view(NUM_RESULTS, count)

    def send_results(self, count: int) -> None:
        """Queue the copy of the results to the host."""
        size = NUM_RESULTS * count
        self._host_results[:size].copy_(self._results[:size], non_blocking=True)
        self._results_sent.record()

    def read(self, works: Seq[Work], soft: Tensor | None) -> list[Outcome | None]:
        """Wait for the results, not for what was queued after them. `soft`: the soft embeddings of all rows."""
        self._results_sent.wait()
        count = sum(work.num_proposals for work in works)
        results = self._host_results[: NUM_RESULTS * count].view(NUM_RESULTS, count).numpy().copy()
        floats = results.view(np.float32)
        token_ids, sampled_ids = results[0].astype(np.int64), results[4].astype(np.int64)
        found = Proposal(token_ids, floats[1], floats[2], results[3] != 0, sampled_ids, soft)
        return split_proposals(works, found)

    def _banned(self, token_ids: tuple[int, ...]) -> Tensor:
        if token_ids not in self._bans:
            if len(self._bans) >= _MAX_BANS:
                self._bans.clear()
            self._bans[token_ids] = torch.tensor(token_ids, device=self._device)
        return self._bans[token_ids]
