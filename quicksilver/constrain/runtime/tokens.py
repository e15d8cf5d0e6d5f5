"""The vocabulary for constraints: bytes of each token, stop tokens, widths, and the alphabet of single bytes.

Built once per tokenizer from its JSON, in about a second for 50,000 tokens.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from llguidance import LLExecutor, LLTokenizer

from quicksilver.constrain.alphabet import make_alphabet
from quicksilver.constrain.runtime.digits import TAIL_LEN, Bits, DigitGuard
from quicksilver.constrain.runtime.unique import Matcher, Quotes, UniqueMatcher

# Results that `Tokens.memo` keeps.
MAX_MEMO = 4096
Answer = TypeVar("Answer")


class Missing(Enum):
    """No result is known; None is a result."""

    MISSING = 0


MISSING = Missing.MISSING


class Tokens:
    """Tables of one tokenizer for a model with `vocab_size` logits."""

    def __init__(self, tokenizer_json: str, eos_ids: Sequence[int], vocab_size: int) -> None:
        self.tokenizer = open_tokenizer(tokenizer_json, list(eos_ids), vocab_size)
        self.eos_ids = frozenset(eos_ids)
        self.vocab_size = vocab_size
        self.num_words = -(-vocab_size // 32)
        size = self.tokenizer.vocab_size
        special_ids = [i for i in range(size) if self.tokenizer.is_special_token(i)]
        self._bytes = [self.tokenizer.decode_bytes([i]) for i in range(size)]
        for i in special_ids:
            self._bytes[i] = b""
        self._special = frozenset(special_ids)
        byte_ids = {text[0]: i for i, text in reversed(list(enumerate(self._bytes))) if len(text) == 1}
        self.alphabet = make_alphabet(byte_ids, special_ids, eos_ids[0], size)
        self.guard = DigitGuard(self._bytes, self.num_words)
        self.width_bits = bits_of(range(vocab_size), self.num_words)
        self.end_bits = bits_of([i for i in eos_ids if i < vocab_size], self.num_words)
        self._full_words = max(-(-size // 32), self.num_words)
        # Whether masks of an automaton are as wide as the logits, without bits behind the last token.
        self._is_whole_width = self._full_words == self.num_words and bool((self.width_bits == -1).all())
        self._joins: dict[tuple[int, int], bool] = {}
        self._memo: dict[object, Any] = {}
        self._spelled: dict[int, list[int] | None] = {}
        # Where a bitmask has the tokens of single bytes, and these bytes.
        known = [(byte, i) for byte, i in byte_ids.items() if i < vocab_size]
        self._byte_words = np.array([i >> 5 for _, i in known], dtype=np.intp)
        self._byte_bits = np.array([1 << (i & 31) for _, i in known], dtype=np.uint32).view(np.int32)
        self._byte_values = np.array([byte for byte, _ in known], dtype=np.uint8)

    def memo(self, key: Hashable, compute: Callable[[], Answer]) -> Answer:
        """A result that depends on the vocabulary and `key` only, computed once."""
        found: Answer | Missing = self._memo.get(key, MISSING)
        if isinstance(found, Missing):
            if len(self._memo) >= MAX_MEMO:
                self._memo.clear()
            found = self._memo[key] = compute()
        return found

    def extend(self, tail: bytes, token_id: int) -> bytes:
        """The last bytes of the text after one more token."""
        return (tail + self._bytes[token_id])[-TAIL_LEN:]

    @cached_property
    def quotes(self) -> Quotes:
        """The tokens with quotes."""
        return Quotes(self._bytes)

    @property
    def texts(self) -> Sequence[bytes]:
        """The bytes of every token."""
        return self._bytes

    def text(self, token_id: int) -> bytes:
        """The bytes of a token; none for a special one."""
        return self._bytes[token_id]

    def spell(self, token_id: int) -> list[int] | None:
        """The ids of a token in the alphabet of bytes."""
        if token_id not in self._spelled:
            is_special = token_id in self._special
            self._spelled[token_id] = [token_id] if is_special else self.alphabet.spell(self._bytes[token_id])
        return self._spelled[token_id]

    def join(self, path: Sequence[int]) -> list[int]:
        """A path in the alphabet as tokens of the vocabulary."""
        tokens: list[int] = []
        text = b""
        for token_id in path:
            if token_id in self._special:
                tokens += [*self.encode(text), token_id]
                text = b""
            else:
                text += self._bytes[token_id]
        return tokens + self.encode(text)

    def allows_letter(self, row: Bits) -> bool:
        """Whether a bitmask row allows a letter: true in strings and prose, false in numbers."""
        letter = self.alphabet.letter_id
        return letter >= 0 and bool(row[letter >> 5] >> (letter & 31) & 1)

    def encode(self, text: bytes) -> list[int]:
        """The tokens of running text."""
        return self.tokenizer.tokenize_bytes(text) if text else []

    def merges_with(self, token_id: int, byte: int) -> bool:
        """Whether the tokenizer would encode `token_id` differently if `byte` followed it."""
        key = (token_id, byte)
        if key not in self._joins:
            self._joins[key] = self.encode(self._bytes[token_id] + bytes((byte,)))[:1] != [token_id]
        return self._joins[key]

    def allowed_bits(self, matcher: Matcher) -> Bits:
        """The tokens that an automaton allows next, as wide as the logits."""
        row: Bits = np.zeros(self.num_words, dtype=np.int32)
        self.write_allowed(matcher, row)
        return row

    def write_allowed(self, matcher: Matcher, row: Bits) -> None:
        """As `allowed_bits`, to a contiguous row."""
        if self._is_whole_width:
            matcher.unsafe_compute_mask_ptr(row.__array_interface__["data"][0], row.nbytes)
        else:
            full: Bits = np.zeros(self._full_words, dtype=np.int32)
            matcher.unsafe_compute_mask_ptr(full.ctypes.data, full.nbytes)
            np.bitwise_and(full[: self.num_words], self.width_bits, out=row)
        if isinstance(matcher, UniqueMatcher):
            matcher.restrict(row)

    def allowed_rows(self, matchers: Sequence[Matcher], executor: LLExecutor) -> Bits:
        """As `allowed_bits`, for several automata in parallel: one row for each."""
        full: Bits = np.zeros((len(matchers), self._full_words), dtype=np.int32)
        inner = [matcher.inner if isinstance(matcher, UniqueMatcher) else matcher for matcher in matchers]
        places = [(matcher, row) for row, matcher in enumerate(inner)]
        executor.unsafe_compute_mask_ptr(places, full.ctypes.data, full.strides[0], len(full))
        for matcher, bits in zip(matchers, full, strict=True):
            if isinstance(matcher, UniqueMatcher):
                matcher.restrict(bits)
        return full if self._is_whole_width else full[:, : self.num_words] & self.width_bits

    def allowed_bytes(self, bits: Bits) -> bytes:
        """Bytes that are allowed next as single-byte tokens."""
        allowed: bytes = self._byte_values[(bits[self._byte_words] & self._byte_bits) != 0].tobytes()
        return allowed


def open_tokenizer(tokenizer_json: str, eos_ids: list[int], vocab_size: int) -> LLTokenizer:
    """The tokenizer for llguidance, at least as wide as the logits. Every added token counts as special.

    Checkpoints mark some of them, such as tool tags, as plain text; free text could then open a tool call unnoticed.
    Added tokens get unguessable names, so that text of a grammar such as `<|im_end|>` is never encoded to one of them.
    """
    content = json.loads(tokenizer_json)
    vocab, salt = content["model"]["vocab"], secrets.token_hex(16)
    for token in content["added_tokens"]:
        name = f"<{salt}:{token['id']}>"
        if token["content"] in vocab:
            vocab[name] = vocab.pop(token["content"])
        token.update(special=True, content=name)
    ids = [*vocab.values(), *(token["id"] for token in content["added_tokens"])]
    return LLTokenizer(json.dumps(content), n_vocab=max(vocab_size, max(ids) + 1), eos_token=eos_ids)


def bits_of(token_ids: Sequence[int], num_words: int) -> Bits:
    flags = np.zeros(num_words * 32, dtype=np.bool_)
    flags[list(token_ids)] = True
    return np.packbits(flags, bitorder="little").view(np.int32)
