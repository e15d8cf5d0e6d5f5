"""The `edit` decoder: fill masks by confidence, revise filled positions, and commit the canvas when nothing changes
or when `edit_passes` forwards have run since the last mask was filled.

Masked positions with a confidence above `threshold` are filled (at least one per step). A filled position is
overwritten by another token with a confidence above `edit_threshold`. The caller applies the stutter penalty to the
logits, which makes repeating the left neighbour less likely (see `left_neighbours`). Filled positions may change only
in the first 4 * canvas length steps; later steps only fill masks, so the number of steps is bounded.

A stop token does not end a canvas: later forwards may still replace it, or tokens before it. Under a grammar nothing
may follow the end of the text, so there a canvas ends when a forward leaves everything up to the stop token unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quicksilver.diffusion import unmask
from quicksilver.diffusion.blocks import CanvasOrBlock
from quicksilver.diffusion.decoder import Canvas, Decision, Tail
from quicksilver.diffusion.sample import Proposal

# A bound on the number of steps for a model that keeps changing its proposals.
MAX_EDIT_STEPS_PER_POSITION = 4


@dataclass(frozen=True, slots=True)
class Edit(CanvasOrBlock):
    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        filled = unmask.confidence_threshold(proposal.confidence, canvas.is_masked, self.params.threshold)
        changed = filled | self._edits(canvas, proposal)
        is_updated = changed | canvas.is_masked
        is_masked = canvas.is_masked & ~filled
        after = replace(
            canvas,
            token_ids=torch.where(is_updated, proposal.token_ids, canvas.token_ids),
            is_masked=is_masked,
            confidence=torch.where(is_updated, proposal.confidence, canvas.confidence),
            step=canvas.step + 1,
            num_passes=0 if bool(canvas.is_masked.any()) else canvas.num_passes + 1,
        )
        is_out_of_passes = not bool(is_masked.any()) and after.num_passes >= self.params.edit_passes
        if is_out_of_passes or not bool(changed.any()):
            return Decision(after.token_ids.tolist(), None)
        is_settled = ~canvas.is_masked & ~changed
        return Decision([], after, num_settled=int(is_settled.cumprod(0).sum()))

    def _edits(self, canvas: Canvas, proposal: Proposal) -> Tensor:
        differs = proposal.token_ids != canvas.token_ids
        may_edit = canvas.step < MAX_EDIT_STEPS_PER_POSITION * len(canvas.token_ids)
        return ~canvas.is_masked & differs & (proposal.confidence > self.params.edit_threshold) & may_edit


def left_neighbours(tail: Tail, last_committed: int) -> list[int]:
    """For each proposal, the token that the stutter penalty applies to: its left neighbour, or -1 if that is masked."""
    ids = [-1 if masked else token for token, masked in zip(tail.token_ids, tail.is_masked, strict=True)]
    return [last_committed, *ids[tail.num_fixed :]][: tail.num_proposals]
