"""`edit` (algorithm H): draft, then correct. Filled positions may still change until nothing does; then all commit.

Positions surer than `threshold` are filled (at least one a step); filled positions are overwritten where another token
is surer than `edit_threshold`. The stutter guard, a penalty on repeating the left neighbour, is applied to the logits
by the caller (see `left_neighbours`). Steps are bounded: after 4 per position edits stop and only filling goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.core import DecoderParams
from quicksilver.diffusion import unmask
from quicksilver.diffusion.decoder import Canvas, Decision, Tail, canvas_tail
from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True, slots=True)
class Edit:
    params: DecoderParams

    def open(self, room: int) -> Canvas:
        return Canvas.blank(min(self.params.canvas_len, room))

    def tail(self, canvas: Canvas) -> Tail:
        return canvas_tail(canvas)

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        filled = unmask.by_threshold(proposal.confidence, canvas.is_masked, self.params.threshold)
        changed = filled | self._edits(canvas, proposal)
        is_shown = changed | canvas.is_masked
        is_masked = canvas.is_masked & ~filled
        after = Canvas(
            torch.where(is_shown, proposal.token_ids, canvas.token_ids),
            is_masked,
            torch.where(is_shown, proposal.confidence, canvas.confidence),
            canvas.step + 1,
            num_passes=0 if bool(canvas.is_masked.any()) else canvas.num_passes + 1,
        )
        is_spent = not bool(is_masked.any()) and after.num_passes >= self.params.edit_passes
        if is_spent or not bool(changed.any()):
            return Decision(after.token_ids.tolist(), None)
        return Decision([], after)

    def _edits(self, canvas: Canvas, proposal: Proposal) -> Tensor:
        differs = proposal.token_ids != canvas.token_ids
        may_edit = canvas.step < 4 * len(canvas.token_ids)
        return ~canvas.is_masked & differs & (proposal.confidence > self.params.edit_threshold) & may_edit


def left_neighbours(tail: Tail, last_committed: int) -> list[int]:
    """For every proposal the token to its left, -1 where that is masked: what the stutter guard penalises."""
    ids = [-1 if masked else token for token, masked in zip(tail.token_ids, tail.is_masked, strict=True)]
    return [last_committed, *ids]
