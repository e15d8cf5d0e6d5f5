"""The text that each token adds to an answer, for committed tokens and for the tokens on the canvas.

A character may be spread over several tokens; it belongs to the token that completes it. The texts of the committed
content tokens and of the shown canvas positions therefore join to the snapshot.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from quicksilver.core import Delta, Frame, TokenLogprob
from quicksilver.text.channels import Channel
from quicksilver.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """A committed content token and the text it added."""

    text: str
    # Determined by a grammar or budget, so no forward chose it.
    is_forced: bool
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class _PendingToken:
    """A committed content token whose text is not known yet."""

    encoded: bytes
    is_forced: bool
    logprob: TokenLogprob | None


class CanvasText:
    """The part of a snapshot after the delivered content: held-back bytes, then canvas tokens up to a special one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.special_tokens.values())
        self._held = b""
        self._pending: list[_PendingToken] = []
        self._has_content = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def commit(self, delta: Delta, channels: Sequence[Channel], content: str) -> tuple[CommittedToken, ...]:
        """`channels` are those of the tokens that were read; `content` is the text that became final with them."""
        fresh = self._content_tokens(delta, channels)
        self._pending += fresh
        num_dropped = self._hold(b"".join(token.encoded for token in fresh), content.encode())
        if not self._has_content:
            return ()
        tokens, self._pending = self._pending, []
        return self._decode(tokens, num_dropped)

    def preview(self, frame: Frame) -> str:
        encoded = b"".join(map(self._tokenizer.token_bytes, self._shown(frame)))
        return (self._held + encoded).decode("utf-8", "ignore")

    def position_texts(self, frame: Frame) -> tuple[str, ...]:
        """The text that each shown position adds; the first one includes the text that is held back."""
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        decoder.setstate(self._decoder.getstate())
        held = decoder.decode(b"".join(token.encoded for token in self._pending))
        texts = [decoder.decode(self._tokenizer.token_bytes(token_id)) for token_id in self._shown(frame)]
        return (held + texts[0], *texts[1:]) if texts else ()

    def _content_tokens(self, delta: Delta, channels: Sequence[Channel]) -> list[_PendingToken]:
        num_decided = len(delta.token_ids) - delta.num_forced
        logprobs = delta.logprobs or (None,) * len(delta.token_ids)
        return [
            _PendingToken(self._tokenizer.token_bytes(delta.token_ids[i]), i >= num_decided, logprobs[i])
            for i, channel in enumerate(channels)
            if channel is Channel.CONTENT
        ]

    def _hold(self, fresh: bytes, content: bytes) -> int:
        """Records the bytes that are held back; returns how many bytes before the first content are never shown."""
        unsent = self._held + fresh
        if not content:
            self._held = unsent
            return 0
        # Text that the channels dropped (a newline after a tag) may not be found; then nothing counts as held back.
        dropped, found, self._held = unsent.partition(content)
        is_first, self._has_content = not self._has_content, True
        return len(dropped) if is_first and found else 0

    def _decode(self, tokens: Sequence[_PendingToken], num_dropped: int) -> tuple[CommittedToken, ...]:
        committed = []
        for token in tokens:
            text = self._decoder.decode(token.encoded[num_dropped:])
            num_dropped = max(0, num_dropped - len(token.encoded))
            committed.append(CommittedToken(text, token.is_forced, token.logprob))
        return tuple(committed)

    def _shown(self, frame: Frame) -> list[int]:
        return list(takewhile(lambda token_id: token_id not in self._special, frame.token_ids))
