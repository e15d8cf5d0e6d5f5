"""A vocabulary of single bytes and special tokens, for fast searches in a grammar.

The ids are those of the real tokenizer, so a grammar that names a special token by id means the same token here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from llguidance import LLTokenizer, TokenizerWrapper

# Allowed in strings and prose, and never between the values of JSON.
PROSE_LETTER = ord("z")
# Bytes to try first in a search for the end of a string or of a value, in order of preference.
ENDS_TEXT = b'"'
ENDS_VALUES = b'}],"0123456789:ntf[{-'
CLOSING = b'}],"'
OTHERS = (*range(32, 127), 10, *range(128, 256))


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The id of each byte, the special ids, and a tokenizer for these ids only."""

    byte_ids: Mapping[int, int]
    special_ids: tuple[int, ...]
    # The bytes of a bitmask that have the bits of special ids.
    special_bytes: tuple[int, ...]
    tokenizer: LLTokenizer
    # Id of the end of the text.
    end_id: int
    # Id of PROSE_LETTER, or -1.
    letter_id: int
    # All ids; those that end a string come first.
    from_text: tuple[int, ...]
    # All ids; those that end an object or array come first.
    from_values: tuple[int, ...]

    @property
    def closing_ids(self) -> frozenset[int]:
        """Ids of bytes that end a string, an object, an array or a value in it."""
        return frozenset(self.byte_ids[byte] for byte in CLOSING if byte in self.byte_ids)

    @property
    def texts(self) -> list[bytes]:
        """The byte of each id; nothing for special ids."""
        texts = [b""] * (1 + max(self.end_id, *self.byte_ids.values()))
        for byte, token_id in self.byte_ids.items():
            texts[token_id] = bytes((byte,))
        return texts

    def spell(self, text: bytes) -> list[int] | None:
        """The ids of the bytes of `text`; None if a byte has no id."""
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
    special_bytes = tuple(sorted({token_id >> 3 for token_id in special_ids}))
    letter_id = byte_ids.get(PROSE_LETTER, -1)
    return Alphabet(byte_ids, tuple(special_ids), special_bytes, tokenizer, end_id, letter_id, *orders)


def plain_alphabet(special_ids: Sequence[int]) -> Alphabet:
    """An alphabet for grammars that name these special ids; the stop token has a separate id."""
    return _plain_alphabet(tuple(special_ids))


@lru_cache(maxsize=16)
def _plain_alphabet(special_ids: tuple[int, ...]) -> Alphabet:
    start = max(special_ids, default=-1) + 1
    byte_ids = {byte: start + byte for byte in range(256)}
    end_id = start + 256
    return make_alphabet(byte_ids, [*special_ids, end_id], end_id, end_id + 1)


class _Bytes:
    """The interface of a tokenizer for llguidance."""

    def __init__(self, tokens: list[bytes], special_ids: Sequence[int], end_id: int) -> None:
        self.eos_token_id = end_id
        self.bos_token_id = None
        self.tokens = tokens
        self.special_token_ids = list(special_ids)
        self._ids = {token[0]: i for i, token in enumerate(tokens) if len(token) == 1}

    def __call__(self, text: bytes) -> list[int]:
        return [self._ids[byte] for byte in text if byte in self._ids]
