"""Which tokens come next whatever the model says: certain text, and its cut into tokens.

The grammar makes bytes certain; a model reads tokens. Certain bytes are spelled as the tokenizer itself would spell
them in running text, so that a model meets its keys and quotes as it learned them. Nothing here moves a matcher.
"""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher

from quicksilver.constrain.runtime.digits import Bits
from quicksilver.constrain.runtime.tokens import Tokens

MAX_WORDS = 32
"""Words of a bitmask beyond which it is not asked whether all its tokens spell the same bytes."""
SIGN = ord("-")


def determined(matcher: LLMatcher, tokens: Tokens) -> list[int]:
    """Tokens that come next whatever is chosen later; often none."""
    step: list[int] = matcher.compute_ff_tokens()
    if step:
        return step
    certain = matcher.compute_ff_bytes()
    if not certain:
        return []
    only = longest_piece(certain, tokens.lawful_bits(matcher), tokens)
    return written_at_once(matcher, certain, tokens) if only is None else [only]


def longest_piece(certain: bytes, bits: Bits, tokens: Tokens) -> int | None:
    """Where only the cut of certain bytes into tokens is open: the longest piece."""
    words = np.flatnonzero(bits)
    if len(words) > MAX_WORDS:
        return None
    flags = np.unpackbits(bits[words].view(np.uint8).reshape(len(words), 4), axis=1, bitorder="little")
    ids = [int(words[i]) * 32 + int(j) for i, j in np.argwhere(flags)]
    texts = [tokens.text(token_id) for token_id in ids]
    if not ids or not all(text and certain.startswith(text) for text in texts):
        return None
    return ids[max(range(len(ids)), key=lambda i: len(texts[i]))]


def written_at_once(matcher: LLMatcher, certain: bytes, tokens: Tokens) -> list[int]:
    """Certain bytes of which a longer token could take in the last, where running text would be cut there anyway.

    The quote that opens a string could begin one of many tokens, yet almost every string starts a token of its own.
    """
    step = tokens.encode(certain)
    num_taken = matcher.try_consume_tokens(step)
    is_cut = num_taken == len(step) and is_cut_behind(step[-1], tokens.lawful_bits(matcher), tokens)
    matcher.rollback(num_taken)
    return step if is_cut else []


def is_cut_behind(token_id: int, bits: Bits, tokens: Tokens) -> bool:
    """Whether none of the bytes that usually follow would join `token_id`: in strings letters and digits, else all that
    are lawful but a sign, since most numbers have none."""
    lawful = tokens.lawful_bytes(bits)
    usual = [byte for byte in lawful if is_alphanumeric(byte)] if tokens.allows_letter(bits) else lawful
    usual = [byte for byte in usual if byte != SIGN]
    return bool(usual) and not any(tokens.joins(token_id, byte) for byte in usual)


def is_alphanumeric(byte: int) -> bool:
    return byte < 128 and chr(byte).isalnum()
