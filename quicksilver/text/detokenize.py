"""Token ids -> text deltas: whole code points only, without text that a stop string may still remove.

Invariant: the deltas joined are the same for every way of cutting the ids into pushes, and never change later.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from quicksilver.text.tokenizer import Tokenizer


class Scanner:
    """Searches a stream for the first of several strings, and holds back text that may be the start of one."""

    def __init__(self, needles: Sequence[str]) -> None:
        self._needles = tuple(needle for needle in needles if needle)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None, str]:
        """Text that is certain now, the string found if any, and what followed it in this push."""
        buffer = self._held + text
        hits = [(at + len(n), at, n) for n in self._needles if (at := buffer.find(n)) >= 0]
        if hits:
            end, start, needle = min(hits)
            self._held = ""
            return buffer[:start], needle, buffer[end:]
        kept = self._open_suffix(buffer)
        self._held = buffer[len(buffer) - kept :]
        return buffer[: len(buffer) - kept], None, ""

    def flush(self) -> str:
        """What was held back: the stream has ended, so it began nothing."""
        held, self._held = self._held, ""
        return held

    def _open_suffix(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that is a beginning of some needle."""
        longest = max((len(n) for n in self._needles), default=1) - 1
        for size in range(min(longest, len(buffer)), 0, -1):
            tail = buffer[-size:]
            if any(n.startswith(tail) for n in self._needles):
                return size
        return 0


class Detokenizer:
    """Text of one answer as its tokens are committed. `stop` strings end it; the one that did is in `stopped`. Of an
    answer that begins with `lead`, or ends within it, that part is left out, and no stop string is looked for in it."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), lead: str = "") -> None:
        self._tokenizer = tokenizer
        self._lead, self._led = lead, ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._scanner = Scanner(stop)
        self._num_chars = 0
        self.stopped: str | None = None
        # For each token pushed, the index in the text, in code points, at which its first character is or will be.
        self.token_offsets: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """The text that became certain; empty once a stop string was found."""
        return "".join(map(self._push_one, ids))

    def finish(self) -> str:
        """The rest: held-back text, and U+FFFD for a code point the model left unfinished."""
        if self.stopped is not None:
            return ""
        return self._release(self._utf8.decode(b"", final=True)) + self._scanner.flush()

    def _push_one(self, token_id: int) -> str:
        if self.stopped is not None:
            return ""
        self.token_offsets.append(self._num_chars)
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        self._num_chars += len(text)
        return self._release(text)

    def _release(self, text: str) -> str:
        certain, self.stopped, _ = self._scanner.push(self._without_lead(text))
        return certain

    def _without_lead(self, text: str) -> str:
        if not self._lead:
            return text
        self._led += text
        if len(self._led) < len(self._lead) and self._lead.startswith(self._led):
            return ""
        text, lead, self._led, self._lead = self._led, self._lead, "", ""
        return text.removeprefix(lead)
