"""A new grammar is tried out on real tokens before a request may use it: what breaks the automaton is refused, not met.

The compile processes know only bytes; some automata grow too large only when a whole vocabulary is asked for. Runs
beside the step loop, once for each grammar.
"""

from __future__ import annotations

import random

import numpy as np
from llguidance import LLMatcher

from quicksilver.constrain.compile.trial_compile import refusal_of
from quicksilver.constrain.runtime.tokens import Tokens

NUM_STEPS = 24
"""Tokens of the trial."""


def trial_walk(matcher: LLMatcher, tokens: Tokens) -> None:
    """Writes a few lawful tokens at random; raises InvalidGrammar if the automaton cannot follow."""
    rng = random.Random(0)
    for _ in range(NUM_STEPS):
        bits = tokens.lawful_bits(matcher)
        if matcher.is_error():
            raise refusal_of(matcher.get_error())
        lawful = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if matcher.is_stopped() or not len(lawful):
            return
        token_id = int(lawful[rng.randrange(len(lawful))])
        if token_id in tokens.eos_ids or not matcher.consume_token(token_id):
            break
    if matcher.is_error():
        raise refusal_of(matcher.get_error())
