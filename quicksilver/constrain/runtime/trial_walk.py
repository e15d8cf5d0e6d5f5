"""Trial run of a new grammar over the tokens of the model, before a request uses it.

The compile processes use a vocabulary of single bytes; some automata exceed a limit only with the full vocabulary. The
trial runs once for each grammar, in a separate thread, so that it does not block the step loop.
"""

from __future__ import annotations

import random

import numpy as np
from llguidance import LLMatcher

from quicksilver.constrain.compile.trial_compile import refusal_of
from quicksilver.constrain.runtime.tokens import Tokens

# Maximum number of tokens that the trial consumes.
NUM_STEPS = 24


def trial_walk(matcher: LLMatcher, tokens: Tokens) -> None:
    """Consumes a few allowed tokens at random; raises InvalidGrammar if the automaton fails."""
    rng = random.Random(0)
    for _ in range(NUM_STEPS):
        bits = tokens.allowed_bits(matcher)
        if matcher.is_error():
            raise refusal_of(matcher.get_error())
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if matcher.is_stopped() or not len(allowed):
            return
        token_id = int(allowed[rng.randrange(len(allowed))])
        if token_id in tokens.eos_ids or not matcher.consume_token(token_id):
            break
    if matcher.is_error():
        raise refusal_of(matcher.get_error())
