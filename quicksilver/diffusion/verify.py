"""The `verify` decoder: self-speculative decoding with two forwards per round.

The draft forward proposes several tokens for the canvas. The verify forward processes these tokens as causal rows with
the same weights. Draft tokens are accepted up to the first one that differs from the causal proposal for its position.
The first proposal of the draft forward also comes from a causal row, so every committed token is the token of the
autoregressive model. With a canvas of one position this is plain autoregression.

A dialect with a draft seed (Nemotron-Labs-Diffusion) drafts differently: the last committed token, the seed, is a row
of the canvas, and each masked row predicts its own position.

Prompt lookup extends a draft: if the last tokens occurred earlier in the text, the tokens that followed them are the
draft. Code, JSON and edits often copy long spans of the prompt, longer than the number of tokens that a canvas predicts
well. The canvas draft has priority: the looked-up tokens must begin with the same token as the canvas draft, and they
end at the first position where the canvas predicts a different token with high confidence. A draft changes how many
tokens a round commits, never which ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quicksilver.core import DecoderParams
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.blocks import masked_ids, seeded_tail
from quicksilver.diffusion.decoder import START, Canvas, Decision, Place, Tail, canvas_tail
from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True, slots=True)
class Verify:
    params: DecoderParams
    dialect: Dialect = AUTOREGRESSIVE

    def open(self, max_tokens: int, place: Place = START) -> Canvas:
        canvas_len = min(self.params.canvas_len, max_tokens)
        if self.dialect.has_draft_seed and canvas_len > 1:
            return replace(Canvas.blank(canvas_len - 1), num_fixed=1)  # the draft seed
        return Canvas.blank(canvas_len)

    def tail(self, canvas: Canvas, tokens: Sequence[int] = ()) -> Tail:
        if not canvas.is_draft:
            return self._draft_tail(canvas, tokens)
        token_ids = tuple(canvas.token_ids.tolist())
        return Tail(token_ids, (False,) * len(token_ids), is_causal=True)

    def _draft_tail(self, canvas: Canvas, tokens: Sequence[int]) -> Tail:
        if canvas.num_fixed:
            return seeded_tail(canvas, self.dialect, tokens, is_shifted=False)
        tail = canvas_tail(canvas)
        if self.dialect.mask_id is None:
            return tail
        token_ids = masked_ids(canvas, self.dialect)[:-1]
        return replace(tail, token_ids=token_ids, has_causal_canvas=self.dialect.has_causal_canvas)

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        return _verified(canvas, proposal) if canvas.is_draft else _drafted(canvas, proposal)


def _drafted(canvas: Canvas, proposal: Proposal) -> Decision:
    if canvas.num_fixed:
        # No causal row proposes: all tokens are drafts, and the verify forward commits at least one.
        drafted = Canvas(proposal.token_ids, canvas.is_masked, proposal.confidence, canvas.step + 1, is_draft=True)
        return Decision([], drafted, num_drafted=len(proposal.token_ids))
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


# These values gave the most tokens per round for the model nano on held-out prompts (decision 0007).
# Length of the n-gram that must have occurred before.
NGRAM_LEN = 4
# A canvas token with at least this confidence is not replaced. At 0.5, edits lose a fifth of their tokens per round.
MIN_CANVAS_CONFIDENCE = 0.9
# Tokens at the end of the text that are searched.
WINDOW = 4096


def lookup(
    text: Sequence[int], draft: npt.NDArray[np.int64], confidence: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """The tokens that replace the first tokens of `draft`; empty if the end of `text` has not occurred before."""
    followers = _followers(np.array(text[-WINDOW:], dtype=np.int64), len(draft))
    if not len(followers) or int(followers[0]) != int(draft[0]):
        return draft[:0]
    differs = followers != draft[: len(followers)]
    is_overruled = np.flatnonzero(differs & (confidence[: len(followers)] >= MIN_CANVAS_CONFIDENCE))
    return followers[: int(is_overruled[0]) if len(is_overruled) else len(followers)]


def _followers(text: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Up to `count` tokens after the latest earlier occurrence of the last `NGRAM_LEN` tokens; empty without one."""
    num_starts = len(text) - NGRAM_LEN
    if num_starts < 1:
        return text[:0]
    is_match = np.ones(num_starts, dtype=bool)
    for i, token in enumerate(text[num_starts:]):
        is_match &= text[i : num_starts + i] == token
    starts = np.flatnonzero(is_match)
    if not len(starts):
        return text[:0]
    begin = int(starts[-1]) + NGRAM_LEN
    return text[begin : begin + count]
