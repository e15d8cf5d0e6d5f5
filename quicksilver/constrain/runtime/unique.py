"""Enforces `uniqueItems` over strings: the text is followed, and tokens that repeat a string of an array are refused.

Grammars write each character of a string in one way, so strings are equal if their bytes are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from quicksilver.constrain.places import ValuePlace, guarded_places

QUOTE, BACKSLASH, COMMA = b'"\\,'


class Chain(NamedTuple):
    """A persistent list of bytes: parts of a string, or the strings of an array."""

    before: Chain | None
    text: bytes


def entries(chain: Chain | None) -> Iterator[bytes]:
    """From the last one to the first."""
    while chain is not None:
        yield chain.text
        chain = chain.before


class Container(NamedTuple):
    """An open object or array, with the strings that a guarded array has so far."""

    outer: Container | None
    place: ValuePlace
    is_array: bool
    strings: Chain | None = None


class Reader(NamedTuple):
    """What is known about a text: open containers, the place of the next value, and the open string."""

    place: ValuePlace
    frame: Container | None = None
    expects_name: bool = False
    in_string: bool = False
    is_escaped: bool = False
    # The text of the open string, if it is a name or an item of a guarded array.
    parts: Chain | None = None

    @property
    def is_item(self) -> bool:
        """Whether the next or open value is an item of a guarded array."""
        return self.frame is not None and self.frame.is_array and self.frame.place.is_unique

    def written(self) -> bytes:
        return b"".join(reversed(list(entries(self.parts))))

    def read(self, text: bytes) -> Reader | None:
        """After more text; None if a string of a guarded array has then become, or must become, one that it has."""
        reader, start = self, 0
        while start < len(text):
            if not reader.in_string:
                reader, start = reader._structure(text[start]), start + 1
                if text[start - 1] == COMMA and reader.is_item and not reader._has_left():
                    return None
                continue
            end = start
            is_escaped = reader.is_escaped
            while end < len(text) and (is_escaped or text[end] != QUOTE):
                is_escaped = not is_escaped and text[end] == BACKSLASH
                end += 1
            reader = reader._longer(text[start:end], is_escaped)
            start = end + 1
            if reader.is_item and not reader._has_left():
                return None
            if end < len(text):
                closed = reader._closed()
                if closed is None:
                    return None
                reader = closed
        return reader

    def _has_left(self) -> bool:
        """Whether the open string, or the next one, can become a new item."""
        if self.frame is None or not self.frame.place.listed:
            return True
        return self.frame.place.has_left(self.written(), entries(self.frame.strings))

    def _longer(self, text: bytes, is_escaped: bool) -> Reader:
        keeps = text and (self.expects_name or self.is_item)
        return self._replace(is_escaped=is_escaped, parts=Chain(self.parts, text) if keeps else self.parts)

    def _closed(self) -> Reader | None:
        """After the quote that closes a string."""
        frame = self.frame
        after = self._replace(in_string=False, parts=None)
        if self.expects_name and frame is not None:
            name = json.loads(b'"' + self.written() + b'"')
            return after._replace(place=frame.place.member(name), expects_name=False)
        if frame is None or not self.is_item:
            return after
        written = self.written()
        if written in entries(frame.strings):
            return None
        return after._replace(frame=frame._replace(strings=Chain(frame.strings, written)))

    def _structure(self, byte: int) -> Reader:
        """After a byte outside strings."""
        if byte == QUOTE:
            return self._replace(in_string=True)
        if byte == ord("{"):
            return self._replace(frame=Container(self.frame, self.place, is_array=False), expects_name=True)
        if byte == ord("["):
            return self._replace(place=self.place.item(), frame=Container(self.frame, self.place, is_array=True))
        if self.frame is None:
            return self
        if byte in b"}]":
            return self._replace(frame=self.frame.outer, expects_name=False)
        if byte == COMMA:
            is_array = self.frame.is_array
            return self._replace(place=self.frame.place.item() if is_array else self.place, expects_name=not is_array)
        return self


class Quotes:
    """The tokens of one vocabulary, given as the bytes of each, and those with one quote and two quotes or more."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        counts = np.array([text.count(b'"') for text in texts])
        self.all, self.one, self.two = (np.flatnonzero(counts >= least) for least in range(3))


class _Step(NamedTuple):
    before: _Step | None
    reader: Reader


class UniqueMatcher:
    """An LLMatcher that refuses to close a repeated string. It has the methods that constraints use."""

    def __init__(self, inner: LLMatcher, quotes: Quotes, start: Reader | _Step) -> None:
        self.inner = inner
        self._quotes = quotes
        self._step = start if isinstance(start, _Step) else _Step(None, start)
        self.is_error, self.get_error = inner.is_error, inner.get_error
        self.is_accepting, self.is_stopped = inner.is_accepting, inner.is_stopped
        # Forced text never closes a guarded string, since that string can always be continued.
        self.compute_ff_tokens, self.compute_ff_bytes = inner.compute_ff_tokens, inner.compute_ff_bytes
        self.unsafe_compute_mask_ptr = inner.unsafe_compute_mask_ptr

    def deep_copy(self) -> UniqueMatcher:
        return UniqueMatcher(self.inner.deep_copy(), self._quotes, self._step)

    def rollback(self, num_tokens: int) -> bool:
        for _ in range(num_tokens):
            assert self._step.before is not None
            self._step = self._step.before
        return self.inner.rollback(num_tokens)

    def consume_token(self, token_id: int) -> bool:
        return self.consume_tokens([token_id])

    def consume_tokens(self, tokens: list[int]) -> bool:
        steps = self._steps(tokens)
        if len(steps) < len(tokens) or not self.inner.consume_tokens(tokens):
            return False
        self._step = steps[-1] if steps else self._step
        return True

    def try_consume_tokens(self, tokens: list[int]) -> int:
        steps = self._steps(tokens)
        num_taken = self.inner.try_consume_tokens(tokens[: len(steps)])
        self._step = steps[num_taken - 1] if num_taken else self._step
        return num_taken

    def validate_tokens(self, tokens: list[int]) -> int:
        return min(self.inner.validate_tokens(tokens), len(self._steps(tokens)))

    def compute_bitmask(self) -> bytes:
        row = np.frombuffer(self.inner.compute_bitmask(), dtype=np.int32).copy()
        self.restrict(row)
        return row.tobytes()

    def restrict(self, row: NDArray[np.int32]) -> None:
        """Removes the tokens from a bitmask that would close a repeated string."""
        ids = self._candidates()
        ids = ids[ids < 32 * len(row)]
        for token_id in ids[(row[ids >> 5] >> (ids & 31) & 1) != 0].tolist():
            if self._step.reader.read(self._quotes.texts[token_id]) is None:
                row[token_id >> 5] &= ~np.uint32(1 << (token_id & 31)).view(np.int32)

    def _candidates(self) -> NDArray[np.intp]:
        """The tokens that might repeat a string. Outside guarded arrays they contain at least a whole string."""
        reader = self._step.reader
        if not reader.is_item or reader.frame is None:
            return self._quotes.two
        if reader.frame.place.listed:
            return self._quotes.all
        written = reader.written()
        could_close = reader.in_string and any(text.startswith(written) for text in entries(reader.frame.strings))
        return self._quotes.one if could_close else self._quotes.two

    def _steps(self, tokens: Sequence[int]) -> list[_Step]:
        """The states after each of the tokens, up to the first one that closes a repeated string."""
        steps: list[_Step] = []
        last = self._step
        for token_id in tokens:
            reader = last.reader.read(self._quotes.texts[token_id])
            if reader is None:
                break
            last = _Step(last, reader)
            steps.append(last)
        return steps


Matcher = LLMatcher | UniqueMatcher


def guarded(matcher: LLMatcher, grammar: str, quotes: Quotes) -> Matcher:
    """The automaton of a grammar at its start, with a guard if the grammar needs one."""
    places = guarded_places(grammar)
    return matcher if places is None else UniqueMatcher(matcher, quotes, Reader(places.root))
