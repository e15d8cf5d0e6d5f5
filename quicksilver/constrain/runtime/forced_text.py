"""Forced tokens: text that the grammar determines, in the tokenisation of running text.

A grammar forces bytes; a model reads tokens. Forced bytes are encoded as the tokenizer encodes running text, so that
keys and quotes look as in training data. A forced token needs no forward of its own. No function advances a matcher.
"""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher

from quicksilver.constrain.runtime.digits import Bits
from quicksilver.constrain.runtime.tokens import Tokens

# With more set words in a bitmask, it is not tested whether all allowed tokens spell the same bytes.
MAX_WORDS = 32
SIGN = ord("-")


def forced_tokens(matcher: LLMatcher, tokens: Tokens) -> list[int]:
    """Tokens that must come next; often none."""
    step: list[int] = matcher.compute_ff_tokens()
    if step:
        return step
    forced = matcher.compute_ff_bytes()
    if not forced:
        return []
    only = longest_prefix_token(forced, tokens.allowed_bits(matcher), tokens)
    return up_to_boundary(matcher, forced, tokens) if only is None else [only]


def longest_prefix_token(forced: bytes, bits: Bits, tokens: Tokens) -> int | None:
    """The longest allowed token, if all allowed tokens are prefixes of the forced bytes."""
    words = np.flatnonzero(bits)
    if len(words) > MAX_WORDS:
        return None
    flags = np.unpackbits(bits[words].view(np.uint8).reshape(len(words), 4), axis=1, bitorder="little")
    ids = [int(words[i]) * 32 + int(j) for i, j in np.argwhere(flags)]
    texts = [tokens.text(token_id) for token_id in ids]
    if not ids or not all(text and forced.startswith(text) for text in texts):
        return None
    return ids[max(range(len(ids)), key=lambda i: len(texts[i]))]


def up_to_boundary(matcher: LLMatcher, forced: bytes, tokens: Tokens) -> list[int]:
    """Forced bytes whose last byte could also begin a longer token, if running text has a token boundary after it.

    The quote that opens a string could begin one of many tokens, but almost every string starts with a new token.
    """
    step = tokens.encode(forced)
    num_taken = matcher.try_consume_tokens(step)
    is_boundary = num_taken == len(step) and has_boundary_after(step[-1], tokens.allowed_bits(matcher), tokens)
    matcher.rollback(num_taken)
    return step if is_boundary else []


def has_boundary_after(token_id: int, bits: Bits, tokens: Tokens) -> bool:
    """Whether none of the usual next bytes would merge with `token_id`: letters and digits in strings, otherwise all
    allowed bytes except a sign, since most numbers have none."""
    allowed = tokens.allowed_bytes(bits)
    usual = [byte for byte in allowed if is_alphanumeric(byte)] if tokens.allows_letter(bits) else allowed
    usual = [byte for byte in usual if byte != SIGN]
    return bool(usual) and not any(tokens.merges_with(token_id, byte) for byte in usual)


def is_alphanumeric(byte: int) -> bool:
    return byte < 128 and chr(byte).isalnum()
