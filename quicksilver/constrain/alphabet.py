"""A vocabulary of single bytes and special tokens, for walking a grammar without the weight of real tokens.

Ids are those of the real tokenizer, so that grammars which name a special token by id mean the same token here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from llguidance import LLTokenizer, TokenizerWrapper

PROSE_LETTER = ord("z")
"""Lawful in strings and prose, and never between the values of JSON."""
ENDS_TEXT = b'"'
ENDS_VALUES = b'}],"0123456789:ntf[{-'
"""Bytes that lead towards the end, best first."""
CLOSING = b'}],"'
OTHERS = (*range(32, 127), 10, *range(128, 256))


@dataclass(frozen=True, slots=True)
class Alphabet:
    """Which id stands for which byte, which ids are special, and a tokenizer that knows only these."""

    byte_ids: Mapping[int, int]
    special_ids: tuple[int, ...]
    tokenizer: LLTokenizer
    letter_id: int
    """Of the prose letter, or -1."""
    from_text: tuple[int, ...]
    """All ids, those first that lead out of a string."""
    from_values: tuple[int, ...]
    """All ids, those first that lead out of an object or array."""

    @property
    def closing_ids(self) -> frozenset[int]:
        """Of bytes that end a string, an object, an array or a value in it."""
        return frozenset(self.byte_ids[byte] for byte in CLOSING if byte in self.byte_ids)

    def spell(self, text: bytes) -> list[int] | None:
        """The ids of some bytes; None where the vocabulary lacks one."""
        ids = [self.byte_ids.get(byte) for byte in text]
        return None if None in ids else [i for i in ids if i is not None]


def make_alphabet(byte_ids: Mapping[int, int], special_ids: Sequence[int], end_id: int, size: int) -> Alphabet:
    tokens = [b""] * size
    for byte, token_id in byte_ids.items():
        tokens[token_id] = bytes((byte,))
    for token_id in special_ids:
        tokens[token_id] = f"<|special {token_id}|>".encode()
    orders = [
        (*special_ids, *dict.fromkeys(byte_ids[byte] for byte in (*first, *OTHERS) if byte in byte_ids))
        for first in (ENDS_TEXT, ENDS_VALUES)
    ]
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(tokens, special_ids, end_id)))
    return Alphabet(byte_ids, tuple(special_ids), tokenizer, byte_ids.get(PROSE_LETTER, -1), *orders)


def plain_alphabet(special_ids: Sequence[int]) -> Alphabet:
    """An alphabet for checking a grammar that names these special ids; its end has an id of its own."""
    return _plain_alphabet(tuple(special_ids))


@lru_cache(maxsize=16)
def _plain_alphabet(special_ids: tuple[int, ...]) -> Alphabet:
    start = max(special_ids, default=-1) + 1
    byte_ids = {byte: start + byte for byte in range(256)}
    end_id = start + 256
    return make_alphabet(byte_ids, [*special_ids, end_id], end_id, end_id + 1)


class _Bytes:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokens: list[bytes], special_ids: Sequence[int], end_id: int) -> None:
        self.eos_token_id = end_id
        self.bos_token_id = None
        self.tokens = tokens
        self.special_token_ids = list(special_ids)
        self._ids = {token[0]: i for i, token in enumerate(tokens) if len(token) == 1}

    def __call__(self, text: bytes) -> list[int]:
        return [self._ids[byte] for byte in text if byte in self._ids]
