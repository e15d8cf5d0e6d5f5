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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quicksilver.diffusion import unmask
from quicksilver.diffusion.blocks import CanvasOrBlock
from quicksilver.diffusion.decoder import Canvas, Decision, Tail
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.stack import Stack

# A bound on the number of steps for a model that keeps changing its proposals.
MAX_EDIT_STEPS_PER_POSITION = 4


@dataclass(frozen=True, slots=True)
class Edit(CanvasOrBlock):
    def decide_all(self, canvases: Sequence[Canvas], proposal: Proposal) -> list[Decision]:
        stack = Stack.of(canvases, proposal)
        filled = unmask.confidence_threshold(stack.proposed.confidence, stack.is_masked, self.params.threshold)
        changed = filled | self._edits(stack)
        after = stack.fill(changed)
        num_passes = np.where(stack.is_masked.any(-1), 0, stack.column("num_passes")[:, 0] + 1)
        is_out_of_passes = ~after.is_masked.any(-1) & (num_passes >= self.params.edit_passes)
        is_done = is_out_of_passes | ~changed.any(-1)
        is_settled = stack.exists & ~stack.is_masked & ~changed
        num_settled = np.logical_and.accumulate(is_settled, -1).sum(-1)
        return _decisions(after, is_done.tolist(), num_passes.tolist(), num_settled.tolist())

    def _edits(self, stack: Stack) -> npt.NDArray[np.bool_]:
        is_filled = stack.exists & ~stack.is_masked
        differs = stack.proposed.token_ids != stack.token_ids
        may_edit = stack.column("step") < MAX_EDIT_STEPS_PER_POSITION * stack.lengths
        return is_filled & differs & (stack.proposed.confidence > self.params.edit_threshold) & may_edit


def _decisions(
    stack: Stack, is_done: Sequence[bool], num_passes: Sequence[int], num_settled: Sequence[int]
) -> list[Decision]:
    decisions = []
    for row, canvas in enumerate(stack.canvases):
        all_positions = slice(len(canvas.token_ids))
        token_ids = stack.token_ids[row, all_positions]
        if is_done[row]:
            decisions.append(Decision(token_ids.tolist(), None))
            continue
        after = Canvas(
            token_ids,
            stack.is_masked[row, all_positions],
            stack.confidence[row, all_positions],
            step=canvas.step + 1,
            num_passes=num_passes[row],
            num_fixed=canvas.num_fixed,
            offset=canvas.offset,
        )
        decisions.append(Decision([], after, num_settled=num_settled[row]))
    return decisions


def left_neighbours(tail: Tail, last_committed: int) -> list[int]:
    """For each proposal, the token that the stutter penalty applies to: its left neighbour, or -1 if that is masked."""
    ids = [-1 if masked else token for token, masked in zip(tail.token_ids, tail.is_masked, strict=True)]
    return [last_committed, *ids[tail.num_fixed :]][: tail.num_proposals]
