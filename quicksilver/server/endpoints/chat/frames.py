"""FrameFormat: a canvas snapshot -> the `quicksilver` object of its chunk, with every token if requested.

A committed token is listed once, with the first snapshot that contains it; canvas positions are listed every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp

from quicksilver.server.endpoints.chat.wire import FrameReply, FrameToken
from quicksilver.text.answer import FrameSnapshot
from quicksilver.text.canvas_text import CommittedToken
from quicksilver.text.tokenizer import Tokenizer

Top = Sequence[tuple[int, float]]


class FrameFormat:
    """Formats the frames of one answer. With a tokenizer they list their tokens."""

    def __init__(self, tokenizer: Tokenizer | None, *, has_alternatives: bool) -> None:
        self._tokenizer = tokenizer
        self._has_alternatives = has_alternatives
        self._unsent: list[CommittedToken] = []

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def add_committed(self, tokens: Iterable[CommittedToken]) -> None:
        if self._tokenizer is not None:
            self._unsent += tokens

    def reply(self, snapshot: FrameSnapshot) -> FrameReply:
        frame = snapshot.frame
        num, decided = len(frame.token_ids), sum(frame.is_decided)
        reply: FrameReply = {
            "step": frame.step,
            "committed": snapshot.num_committed,
            "decided": decided,
            "masked": num - decided,
            "confidence": round(sum(frame.confidence) / num, 4) if num else 1.0,
        }
        if self._tokenizer is not None:
            reply["shown"] = len(snapshot.position_texts)
            reply["tokens"] = [*self._take_committed(), *self._canvas(snapshot, self._tokenizer)]
        return reply

    def committed_reply(self, content: str, step: int) -> FrameReply:
        """A snapshot without a canvas: before the first frame, and at the end."""
        reply: FrameReply = {
            "step": step,
            "committed": len(content),
            "decided": 0,
            "masked": 0,
            "confidence": 1.0,
        }
        if self._tokenizer is not None:
            reply["shown"] = 0
            reply["tokens"] = self._take_committed()
        return reply

    def _take_committed(self) -> list[FrameToken]:
        committed, self._unsent = self._unsent, []
        return [self._committed(token) for token in committed]

    def _committed(self, token: CommittedToken) -> FrameToken:
        state = "forced" if token.is_forced else "committed"
        if token.logprob is None:
            return [token.text, state, None]
        return self._with_top([token.text, state, round(exp(token.logprob.logprob), 4)], token.logprob.top)

    def _canvas(self, snapshot: FrameSnapshot, tokenizer: Tokenizer) -> list[FrameToken]:
        frame = snapshot.frame
        hidden = map(tokenizer.token_text, frame.token_ids[len(snapshot.position_texts) :])
        texts = (*snapshot.position_texts, *hidden)
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
