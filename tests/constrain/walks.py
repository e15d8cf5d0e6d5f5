"""Helpers that run a grammar byte by byte: whether a text is allowed, and random texts."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from quicksilver.constrain.alphabet import Alphabet, plain_alphabet
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.trial_compile import LIMITS
from quicksilver.constrain.runtime.digits import digits_left
from quicksilver.constrain.runtime.unique import Matcher, Quotes, guarded
from quicksilver.constrain.source import FormatKind, Policy, ResponseFormat
from quicksilver.core import ConstraintSpec

ALPHABET = plain_alphabet([])
CLOSERS = b'"}],:'


def schema_spec(schema: Any, policy: Policy = Policy.GUARANTEED) -> ConstraintSpec:
    return _schema_spec(json.dumps(schema), policy)


@lru_cache(maxsize=512)
def _schema_spec(schema: str, policy: Policy) -> ConstraintSpec:
    return compile_response_format(ResponseFormat(FormatKind.JSON_SCHEMA, json.loads(schema), policy))


def automaton(spec: ConstraintSpec, alphabet: Alphabet = ALPHABET) -> Matcher:
    matcher = LLMatcher(alphabet.tokenizer, spec.grammar, log_level=0, limits=LIMITS)
    return guarded(matcher, spec.grammar, Quotes(alphabet.texts))


def accepts(spec: ConstraintSpec, text: str) -> bool:
    """Whether the grammar takes the whole text and lets it end."""
    return finishes(automaton(spec), text)


def finishes(matcher: Matcher, text: str) -> bool:
    ids = ALPHABET.spell(text.encode())
    assert ids is not None
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def admits(schema: Any, *instances: Any) -> list[bool]:
    """For each instance, written compactly, whether the schema's grammar takes it."""
    spec = schema_spec(schema)
    return [accepts(spec, compact(instance)) for instance in instances]


def compact(instance: Any) -> str:
    return json.dumps(instance, ensure_ascii=False, separators=(",", ":"))


def chance_text(matcher: Matcher, rng: random.Random, most: int = 300) -> str | None:
    """What a random choice of allowed bytes writes, leaning towards the end; None when it runs on."""
    written = bytearray()
    while len(written) < most:
        if matcher.is_stopped() or (matcher.is_accepting() and rng.random() < 0.3):
            return written.decode()
        byte = _choose(matcher, bytes(written[-64:]), rng, eager=len(written) > most // 3)
        if byte is None:
            return written.decode()
        assert matcher.consume_token(ALPHABET.byte_ids[byte]), matcher.get_error()
        written.append(byte)
    return None


def _choose(matcher: Matcher, tail: bytes, rng: random.Random, *, eager: bool) -> int | None:
    """One allowed byte; None where the guard on digits leaves nothing but the end."""
    bits = matcher.compute_bitmask()
    allowed = [b for b, i in ALPHABET.byte_ids.items() if bits[i >> 3] >> (i & 7) & 1]
    assert allowed, matcher.get_error()
    left = digits_left(tail)
    if left is not None and left <= 0 and ord("z") not in allowed:
        allowed = [b for b in allowed if b not in b"0123456789"]
        if not allowed and matcher.is_accepting():
            return None
    closers = [b for b in allowed if b in CLOSERS]
    if closers and rng.random() < (0.9 if eager else 0.35):
        return rng.choice(closers)
    plain = [b for b in allowed if b < 128]
    return rng.choice(plain if plain and rng.random() < 0.97 else allowed)
