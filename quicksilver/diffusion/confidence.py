"""The `confidence` decoder: each forward unmasks the positions that a commit rule selects.

With a canvas adapter the canvas slides. Position 0 is proposed by a causal row, which is the prediction of the base
model without the canvas adapter, so it always commits. The leading decided run leaves the canvas at once (causal rows
of the next forward write its KV), and the same number of masks enters on the right.

In a dialect with blocks the canvas is the rest of a block. The leading decided run is committed at once too, because
decided positions never change; its tokens stay rows of the canvas until the block is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quicksilver.core import CommitRule
from quicksilver.diffusion import unmask
from quicksilver.diffusion.blocks import CanvasOrBlock, in_sub_block, shrink
from quicksilver.diffusion.decoder import Canvas, Decision
from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True, slots=True)
class Confidence(CanvasOrBlock):
    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        if self.dialect.has_blocks:
            eligible = replace(canvas, is_masked=in_sub_block(canvas, self.dialect.sub_block_len))
            filled = fill(canvas, proposal, self._choose(eligible, proposal) & eligible.is_masked)
            return shrink(filled, filled.num_decided)
        chosen = self._choose(canvas, proposal) & canvas.is_masked
        chosen[0] = canvas.is_masked[0]
        filled = fill(canvas, proposal, chosen)
        return slide(filled, filled.num_decided)

    def _choose(self, canvas: Canvas, proposal: Proposal) -> Tensor:
        params, is_masked = self.params, canvas.is_masked
        if params.rule is CommitRule.STATIC:
            # The step of a sliding canvas grows without end, so the schedule of `steps` steps repeats.
            num = unmask.static_count(int(is_masked.sum()), params.steps - canvas.step % params.steps)
            return unmask.most_confident(proposal.confidence, is_masked, num)
        if params.rule is CommitRule.DYNAMIC:
            length = self.dialect.sub_block_len or self.dialect.block_len or len(is_masked)
            num_least = unmask.even_share(length, params.steps, canvas.step)
            return unmask.dynamic_threshold(proposal.confidence, is_masked, params.threshold, num_least)
        if params.rule is CommitRule.FACTOR:
            return unmask.confidence_factor(proposal.confidence, is_masked, params.factor)
        if params.rule is CommitRule.ENTROPY:
            return unmask.entropy_bound(proposal.entropy, is_masked, params.entropy_bound)
        return unmask.confidence_threshold(proposal.confidence, is_masked, params.threshold)


def fill(canvas: Canvas, proposal: Proposal, chosen: Tensor) -> Canvas:
    """The canvas with `chosen` positions decided. Masked positions keep the proposal as their current guess."""
    is_open = canvas.is_masked | chosen
    return replace(
        canvas,
        token_ids=torch.where(is_open, proposal.token_ids, canvas.token_ids),
        is_masked=canvas.is_masked & ~chosen,
        confidence=torch.where(is_open, proposal.confidence, canvas.confidence),
        step=canvas.step + 1,
    )


def slide(canvas: Canvas, num_committed: int) -> Decision:
    """Commit the first `num_committed` positions and append the same number of masks."""
    fresh = Canvas.blank(num_committed)
    rest = Canvas(
        torch.cat([canvas.token_ids[num_committed:], fresh.token_ids]),
        torch.cat([canvas.is_masked[num_committed:], fresh.is_masked]),
        torch.cat([canvas.confidence[num_committed:], fresh.confidence]),
        canvas.step,
    )
    return Decision(canvas.token_ids[:num_committed].tolist(), rest)
