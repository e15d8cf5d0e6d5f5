"""`verify` (algorithm N, two forwards a round): the canvas drafts, the causal rows of the same weights verify.

Every committed token is the autoregressive model's own: the draft forward's first proposal comes from a causal row, and
a drafted token commits only where it equals the causal proposal for its position. With a canvas of one row this is
plain autoregression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quicksilver.core import DecoderParams
from quicksilver.diffusion.decoder import Canvas, Decision, Tail, canvas_tail
from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True, slots=True)
class Verify:
    params: DecoderParams

    def open(self, room: int) -> Canvas:
        return Canvas.blank(min(self.params.canvas_len, room))

    def tail(self, canvas: Canvas) -> Tail:
        if not canvas.is_draft:
            return canvas_tail(canvas)
        token_ids = tuple(canvas.token_ids.tolist())
        return Tail(token_ids, (False,) * len(token_ids), is_causal=True)

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        return _verified(canvas, proposal) if canvas.is_draft else _drafted(canvas, proposal)


def _drafted(canvas: Canvas, proposal: Proposal) -> Decision:
    first, *rest = proposal.token_ids.tolist()
    if not rest:
        return Decision([first])
    drafted = Canvas(proposal.token_ids[1:], canvas.is_masked[1:], proposal.confidence[1:], canvas.step + 1, True)
    return Decision([first], drafted, num_drafted=len(rest))


def _verified(canvas: Canvas, proposal: Proposal) -> Decision:
    proposed = proposal.token_ids.tolist()
    num_accepted = agreement(proposed, canvas.token_ids.tolist())
    # The proposal after the last accepted token is the causal model's own: a token for free.
    return Decision(proposed[: num_accepted + 1], None, num_accepted)


def agreement(proposed: Sequence[int], draft: Sequence[int]) -> int:
    """How many tokens of a draft are what was proposed in their place, up to the first that is not."""
    accepted = 0
    while accepted < len(draft) and proposed[accepted] == draft[accepted]:
        accepted += 1
    return accepted
