"""The `confidence` decoder: each forward unmasks the positions that a commit rule selects.

With a canvas adapter the canvas slides. Position 0 is proposed by a causal row, which is the prediction of the base
model without the canvas adapter, so it always commits. The leading decided run leaves the canvas at once (causal rows
of the next forward write its KV), and the same number of masks enters on the right.

In a dialect with blocks the canvas is the rest of a block. The leading decided run is committed at once too, because
decided positions never change; its tokens stay rows of the canvas until the block is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quicksilver.core import CommitRule
from quicksilver.diffusion import unmask
from quicksilver.diffusion.blocks import CanvasOrBlock, in_sub_block, shrink
from quicksilver.diffusion.decoder import Canvas, Decision
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.stack import Stack


@dataclass(frozen=True, slots=True)
class Confidence(CanvasOrBlock):
    def decide_all(self, canvases: Sequence[Canvas], proposal: Proposal) -> list[Decision]:
        stack = Stack.of(canvases, proposal)
        if self.dialect.has_blocks:
            return shrink(stack.fill(self._choose(stack, in_sub_block(stack, self.dialect.sub_block_len))))
        chosen = self._choose(stack, stack.is_masked)
        chosen[:, 0] = stack.is_masked[:, 0]
        return slide(stack.fill(chosen))

    def _choose(self, stack: Stack, is_masked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """`is_masked`: the masked positions that may be decided."""
        params, confidence = self.params, stack.proposed.confidence
        if params.rule is CommitRule.STATIC:
            # The step of a sliding canvas grows without end, so the schedule of `steps` steps repeats.
            steps_left = params.steps - stack.column("step") % params.steps
            num = unmask.static_count(is_masked.sum(-1, keepdims=True), steps_left)
            return unmask.most_confident(confidence, is_masked, num)
        if params.rule is CommitRule.DYNAMIC:
            block_len = self.dialect.sub_block_len or self.dialect.block_len
            lengths = np.full_like(stack.lengths, block_len) if block_len else stack.lengths
            num_least = unmask.even_share(lengths, params.steps, stack.column("step"))
            return unmask.dynamic_threshold(confidence, is_masked, params.threshold, num_least)
        if params.rule is CommitRule.FACTOR:
            return unmask.confidence_factor(confidence, is_masked, params.factor)
        if params.rule is CommitRule.ENTROPY:
            return unmask.entropy_bound(stack.proposed.entropy, is_masked, params.entropy_bound)
        return unmask.confidence_threshold(confidence, is_masked, params.threshold)


def slide(stack: Stack) -> list[Decision]:
    """Commit the leading decided run of every canvas and append the same number of masks."""
    decisions = []
    for row, (canvas, count) in enumerate(zip(stack.canvases, stack.num_decided(), strict=True)):
        fresh, rest = Canvas.blank(count), slice(count, len(canvas.token_ids))
        after = Canvas(
            np.concatenate([stack.token_ids[row, rest], fresh.token_ids]),
            np.concatenate([stack.is_masked[row, rest], fresh.is_masked]),
            np.concatenate([stack.confidence[row, rest], fresh.confidence]),
            canvas.step + 1,
        )
        decisions.append(Decision(stack.token_ids[row, :count].tolist(), after))
    return decisions
