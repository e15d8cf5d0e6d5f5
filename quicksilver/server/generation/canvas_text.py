"""Tokens -> the text that each adds to an answer: committed tokens for good, canvas tokens as they stand.

A character may be spread over several tokens; it belongs to the one that completes it. So the texts of the committed
content tokens and of the shown canvas positions join to the snapshot.
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
class Settled:
    """A committed content token, and the text it added."""

    text: str
    is_forced: bool
    """Nothing else could stand there, by grammar or budget; no forward was spent on choosing it."""
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class _Committed:
    """A content token before its text is known."""

    spelled: bytes
    is_forced: bool
    logprob: TokenLogprob | None


class Canvas:
    """What a snapshot adds behind the committed content: held-back bytes, then the guesses up to a special token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.special_tokens.values())
        self._held = b""
        self._waiting: list[_Committed] = []
        self._has_said = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def commit(self, delta: Delta, channels: Sequence[Channel], content: str) -> tuple[Settled, ...]:
        """`channels` of the tokens that were read, `content` the text that became certain with them."""
        fresh = self._content_tokens(delta, channels)
        self._waiting += fresh
        num_dropped = self._say(b"".join(token.spelled for token in fresh), content.encode())
        if not self._has_said:
            return ()
        tokens, self._waiting = self._waiting, []
        return self._settle(tokens, num_dropped)

    def preview(self, frame: Frame) -> str:
        spelled = b"".join(map(self._tokenizer.token_bytes, self._shown(frame)))
        return (self._held + spelled).decode("utf-8", "ignore")

    def spell(self, frame: Frame) -> tuple[str, ...]:
        """The text that each shown position adds; the first one also shows what waits to be said."""
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        decoder.setstate(self._decoder.getstate())
        waiting = decoder.decode(b"".join(token.spelled for token in self._waiting))
        texts = [decoder.decode(self._tokenizer.token_bytes(token_id)) for token_id in self._shown(frame)]
        return (waiting + texts[0], *texts[1:]) if texts else ()

    def _content_tokens(self, delta: Delta, channels: Sequence[Channel]) -> list[_Committed]:
        num_decided = len(delta.token_ids) - delta.num_forced
        logprobs = delta.logprobs or (None,) * len(delta.token_ids)
        return [
            _Committed(self._tokenizer.token_bytes(delta.token_ids[i]), i >= num_decided, logprobs[i])
            for i, channel in enumerate(channels)
            if channel is Channel.CONTENT
        ]

    def _say(self, fresh: bytes, content: bytes) -> int:
        """Notes what is held back; returns how many bytes before the first text of all will never be said."""
        unsaid = self._held + fresh
        if not content:
            self._held = unsaid
            return 0
        # Text that the channels dropped (a newline behind a tag) may not be found, and then nothing counts as held.
        dropped, found, self._held = unsaid.partition(content)
        is_first, self._has_said = not self._has_said, True
        return len(dropped) if is_first and found else 0

    def _settle(self, tokens: Sequence[_Committed], num_dropped: int) -> tuple[Settled, ...]:
        settled = []
        for token in tokens:
            text = self._decoder.decode(token.spelled[num_dropped:])
            num_dropped = max(0, num_dropped - len(token.spelled))
            settled.append(Settled(text, token.is_forced, token.logprob))
        return tuple(settled)

    def _shown(self, frame: Frame) -> list[int]:
        return list(takewhile(lambda token_id: token_id not in self._special, frame.token_ids))
