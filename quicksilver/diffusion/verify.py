"""The `verify` decoder: self-speculative decoding with two forwards per round.

The draft forward proposes several tokens for the canvas. The verify forward processes these tokens as causal rows with
the same weights. Draft tokens are accepted up to the first one that differs from the causal proposal for its position.
The first proposal of the draft forward also comes from a causal row, so every committed token is the token of the
autoregressive model. With a canvas of one
position this is plain autoregression.
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

    def open(self, max_tokens: int) -> Canvas:
        return Canvas.blank(min(self.params.canvas_len, max_tokens))

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
    num_accepted = count_accepted(proposed, canvas.token_ids.tolist())
    # The proposal after the last accepted token has a verified left context too, so it is committed as well.
    return Decision(proposed[: num_accepted + 1], None, num_accepted)


def count_accepted(proposed: Sequence[int], draft: Sequence[int]) -> int:
    """The length of the leading part of `draft` that equals `proposed`."""
    accepted = 0
    while accepted < len(draft) and proposed[accepted] == draft[accepted]:
        accepted += 1
    return accepted
