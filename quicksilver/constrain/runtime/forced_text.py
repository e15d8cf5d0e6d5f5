"""Forced tokens: text that the grammar determines, in the tokenisation of running text.

A grammar forces bytes; a model reads tokens. Forced bytes are encoded as the tokenizer encodes running text, so that
keys and quotes look as in training data. A forced token needs no forward of its own. No function advances a matcher.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quicksilver.constrain.runtime.digits import Bits
from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.runtime.unique import Matcher

# With more set words in a bitmask, it is not tested whether all allowed tokens spell the same bytes.
MAX_WORDS = 32
SIGN = ord("-")


@dataclass(frozen=True, slots=True)
class ForcedRun:
    """Tokens that must come next, often none; and the tokens that the automaton allows after them, where these were
    computed to find the end of the run."""

    tokens: list[int]
    bits_after: Bits | None = None


NOTHING = ForcedRun([])


def forced_run(matcher: Matcher, tokens: Tokens) -> ForcedRun:
    step: list[int] = matcher.compute_ff_tokens()
    if step:
        return ForcedRun(step)
    forced = matcher.compute_ff_bytes()
    if not forced:
        return NOTHING
    only = longest_prefix_token(forced, tokens.allowed_bits(matcher), tokens)
    return up_to_boundary(matcher, forced, tokens) if only is None else ForcedRun([only])


def longest_prefix_token(forced: bytes, bits: Bits, tokens: Tokens) -> int | None:
    """The longest allowed token, if all allowed tokens are prefixes of the forced bytes."""
    words = np.flatnonzero(bits)
    if not 0 < len(words) <= MAX_WORDS:
        return None
    key = ("longest", forced, words.tobytes(), bits[words].tobytes())
    return tokens.memo(key, lambda: _longest_prefix(forced, words, bits[words], tokens))


def _longest_prefix(forced: bytes, words: NDArray[np.intp], values: Bits, tokens: Tokens) -> int | None:
    flags = np.unpackbits(values.view(np.uint8).reshape(len(words), 4), axis=1, bitorder="little")
    ids = [int(words[i]) * 32 + int(j) for i, j in np.argwhere(flags)]
    texts = [tokens.text(token_id) for token_id in ids]
    if not all(text and forced.startswith(text) for text in texts):
        return None
    return ids[max(range(len(ids)), key=lambda i: len(texts[i]))]


def up_to_boundary(matcher: Matcher, forced: bytes, tokens: Tokens) -> ForcedRun:
    """Forced bytes whose last byte could also begin a longer token, if running text has a token boundary after it.

    The quote that opens a string could begin one of many tokens, but almost every string starts with a new token.
    """
    step = tokens.memo(("encoded", forced), lambda: tokens.encode(forced))
    num_taken = matcher.try_consume_tokens(step)
    bits = tokens.allowed_bits(matcher) if num_taken == len(step) else None
    matcher.rollback(num_taken)
    is_boundary = bits is not None and has_boundary_after(step[-1], bits, tokens)
    return ForcedRun(list(step), bits) if is_boundary else NOTHING


def has_boundary_after(token_id: int, bits: Bits, tokens: Tokens) -> bool:
    """Whether none of the usual next bytes would merge with `token_id`: letters and digits in strings, otherwise all
    allowed bytes except a sign, since most numbers have none."""
    allowed, allows_letter = tokens.allowed_bytes(bits), tokens.allows_letter(bits)
    key = ("boundary", token_id, allowed, allows_letter)
    return tokens.memo(key, lambda: _has_boundary(token_id, allowed, allows_letter, tokens))


def _has_boundary(token_id: int, allowed: bytes, allows_letter: bool, tokens: Tokens) -> bool:
    usual = [byte for byte in allowed if is_alphanumeric(byte)] if allows_letter else allowed
    usual = [byte for byte in usual if byte != SIGN]
    return bool(usual) and not any(tokens.merges_with(token_id, byte) for byte in usual)


def is_alphanumeric(byte: int) -> bool:
    return byte < 128 and chr(byte).isalnum()
