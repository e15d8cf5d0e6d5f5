"""A snapshot -> the `quicksilver` object beside it: what the text rests on and, when asked for, every token of it.

Committed tokens are told once, with the first snapshot that holds them; canvas positions are told anew each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp

from quicksilver.server.endpoints.chat.wire import FrameReply, FrameToken
from quicksilver.server.generation.answer import Shown
from quicksilver.server.generation.canvas_text import Settled
from quicksilver.text.tokenizer import Tokenizer

Top = Sequence[tuple[int, float]]


class FrameTeller:
    """The frames of one answer. With a tokenizer they list their tokens."""

    def __init__(self, tokenizer: Tokenizer | None, *, has_alternatives: bool) -> None:
        self._tokenizer = tokenizer
        self._has_alternatives = has_alternatives
        self._untold: list[Settled] = []

    @property
    def has_untold(self) -> bool:
        return bool(self._untold)

    def settle(self, tokens: Iterable[Settled]) -> None:
        if self._tokenizer is not None:
            self._untold += tokens

    def tell(self, shown: Shown) -> FrameReply:
        frame = shown.frame
        num, decided = len(frame.token_ids), sum(frame.is_decided)
        reply: FrameReply = {
            "step": frame.step,
            "committed": shown.num_committed,
            "decided": decided,
            "masked": num - decided,
            "confidence": round(sum(frame.confidence) / num, 4) if num else 1.0,
        }
        if self._tokenizer is not None:
            reply["shown"] = len(shown.spelled)
            reply["tokens"] = [*self._take_settled(), *self._canvas(shown, self._tokenizer)]
        return reply

    def tell_committed(self, content: str, step: int) -> FrameReply:
        """A snapshot with no canvas behind it: before the first frame, and at the end."""
        reply: FrameReply = {
            "step": step,
            "committed": len(content),
            "decided": 0,
            "masked": 0,
            "confidence": 1.0,
        }
        if self._tokenizer is not None:
            reply["shown"] = 0
            reply["tokens"] = self._take_settled()
        return reply

    def _take_settled(self) -> list[FrameToken]:
        settled, self._untold = self._untold, []
        return [self._settled(token) for token in settled]

    def _settled(self, token: Settled) -> FrameToken:
        state = "forced" if token.is_forced else "committed"
        if token.logprob is None:
            return [token.text, state, None]
        return self._with_top([token.text, state, round(exp(token.logprob.logprob), 4)], token.logprob.top)

    def _canvas(self, shown: Shown, tokenizer: Tokenizer) -> list[FrameToken]:
        frame = shown.frame
        hidden = map(tokenizer.token_text, frame.token_ids[len(shown.spelled) :])
        texts = (*shown.spelled, *hidden)
        top = frame.top or ((),) * len(texts)
        rows = zip(texts, frame.is_decided, frame.confidence, top, strict=True)
        return [
            self._with_top([text, "decided" if is_decided else "masked", round(p, 4)], others)
            for text, is_decided, p, others in rows
        ]

    def _with_top(self, token: FrameToken, top: Top) -> FrameToken:
        if not self._has_alternatives or self._tokenizer is None:
            return token
        return [*token, [[self._tokenizer.token_text(i), round(exp(logprob), 4)] for i, logprob in top]]
