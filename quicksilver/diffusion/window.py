"""The `window` decoder: fill positions of low entropy in a window that moves with the text (WeDLM).

Each row attends to itself and the rows before it. Their order is not that of the text: filled positions come first,
then the masks, each with its true position. So every mask attends to all filled positions. A position is filled if its
entropy, plus a penalty for its distance from the first mask, is below `entropy_bound`; the best one always is. The
leading filled run is committed at once: its KV depends on the text before it only, so the next forward computes the
same KV as context rows. As many masks enter after that forward, so that every forward has the same number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quicksilver.core import DecoderParams
from quicksilver.dialect import Dialect
from quicksilver.diffusion.blocks import masked_ids
from quicksilver.diffusion.decoder import START, Canvas, Decision, Place, Tail
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.stack import Stack

# Nats of entropy per position of distance from the first mask.
DISTANCE_PENALTY = 0.02


@dataclass(frozen=True, slots=True)
class Window:
    params: DecoderParams
    dialect: Dialect

    def open(self, max_tokens: int, place: Place = START) -> Canvas:
        """Always a whole window: its length is part of what selects positions, so it must not depend on the limit."""
        return Canvas.blank(self.params.canvas_len)

    def tail(self, canvas: Canvas, tokens: Sequence[int] = ()) -> Tail:
        order = canvas.is_masked.argsort(kind="stable").tolist()
        ids, is_masked = masked_ids(canvas, self.dialect), canvas.is_masked.tolist()
        rows = sorted(range(len(order)), key=order.__getitem__)
        return Tail(
            tuple(ids[index] for index in order),
            tuple(is_masked[index] for index in order),
            has_causal_canvas=True,
            positions=tuple(order),
            proposing=(1, 1 + len(order)),
            row_of=tuple(1 + row for row in rows),
            num_known=canvas.num_decided,
        )

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        filled = Stack.of([canvas], proposal).fill(self._choose(canvas, proposal))
        num_committed = filled.num_decided()[0]
        fresh = Canvas.blank(canvas.num_entering)
        rest = replace(
            canvas,
            token_ids=np.concatenate([filled.token_ids[0, num_committed:], fresh.token_ids]),
            is_masked=np.concatenate([filled.is_masked[0, num_committed:], fresh.is_masked]),
            confidence=np.concatenate([filled.confidence[0, num_committed:], fresh.confidence]),
            step=canvas.step + 1,
            num_entering=num_committed,
        )
        # A window in which everything was filled at once is empty for one forward; a new one takes its place.
        return Decision(filled.token_ids[0, :num_committed].tolist(), rest if len(rest.token_ids) else None)

    def _choose(self, canvas: Canvas, proposal: Proposal) -> npt.NDArray[np.bool_]:
        is_masked, index = canvas.is_masked, np.arange(len(canvas.is_masked))
        score = proposal.entropy + np.float32(DISTANCE_PENALTY) * (index - is_masked.argmax()).astype(np.float32)
        score = np.where(is_masked, score, np.inf)
        return is_masked & ((score < self.params.entropy_bound) | (index == score.argmin()))
