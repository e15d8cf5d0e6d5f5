"""A short way from a grammar's present state to its end, byte by byte.

Greedy: close what is open, choose the smallest value, follow what is forced. When that runs in circles, a bounded
search that also tries the words of the grammar's patterns, then one over single bytes. Nothing here moves the matcher
that it is given. Grammars whose single steps are slow are given up by the processor's clock, which ordinary ones never
come near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count, islice
from time import thread_time

from llguidance import LLMatcher

from quicksilver.constrain.alphabet import Alphabet

MAX_STEPS = 300
"""Choices that the greedy walk makes at most."""
LIMIT_S = 0.1
"""Processor time for one question; a hundred times what an ordinary grammar takes."""
MAX_STATES = 400
"""States that a search visits at most."""
MAX_BYTES = 20_000
BRANCHES = 6
SAME = 6
"""Bytes behind which states are told apart."""


class TooCostly(Exception):
    """The question would cost more than its answer is worth."""


Steps = Callable[[LLMatcher, Alphabet], list[tuple[int, list[int]]]]
"""The ways to go on from a state, and what each costs."""


def shortest(matcher: LLMatcher, alphabet: Alphabet, words: Sequence[bytes] = ()) -> list[int] | None:
    """Ids, in the alphabet, of a short completion; empty where the text may end, None where none was found. `words` are
    tried where single bytes lead in circles."""
    deadline = thread_time() + LIMIT_S
    path = greedy(matcher.deep_copy(), alphabet, deadline)
    if path is None and words:
        spelled = [ids for word in words if (ids := alphabet.spell(word))]
        path = search(matcher, alphabet, deadline, lambda state, _: word_steps(state, alphabet, spelled))
    return search(matcher, alphabet, deadline) if path is None else path


def greedy(matcher: LLMatcher, alphabet: Alphabet, deadline: float) -> list[int] | None:
    path: list[int] = []
    for _ in range(MAX_STEPS):
        if matcher.is_error() or len(path) > MAX_BYTES:
            return None
        if matcher.is_accepting():
            return path
        require_time(deadline)
        step = matcher.compute_ff_tokens() or allowed(matcher, alphabet, 1)
        if not step or not matcher.consume_tokens(step):
            return None
        path += step
    return None


def require_time(deadline: float) -> None:
    if thread_time() > deadline:
        raise TooCostly


def byte_steps(matcher: LLMatcher, alphabet: Alphabet) -> list[tuple[int, list[int]]]:
    """A byte costs one."""
    forced = matcher.compute_ff_tokens()
    if forced:
        return [(len(forced), forced)]
    return [(1, [token_id]) for token_id in allowed(matcher, alphabet, BRANCHES)]


def word_steps(matcher: LLMatcher, alphabet: Alphabet, words: Sequence[list[int]]) -> list[tuple[int, list[int]]]:
    """What is forced, or else closes, costs nothing; where neither is, the best byte and words that fit cost one."""
    forced = matcher.compute_ff_tokens()
    best = forced or allowed(matcher, alphabet, 1)
    if not best or forced or best[0] in alphabet.closing_ids:
        return [(0, best)] if best else []
    return [(1, best), *((1, word) for word in words if matcher.validate_tokens(word) == len(word))]


def allowed(matcher: LLMatcher, alphabet: Alphabet, most: int) -> list[int]:
    """The best few ids that may come next: special tokens, then bytes that close, then others."""
    bits = matcher.compute_bitmask()
    order = alphabet.from_text if is_set(bits, alphabet.letter_id) else alphabet.from_values
    return list(islice((token_id for token_id in order if is_set(bits, token_id)), most))


def is_set(bits: bytes, token_id: int) -> bool:
    return token_id >= 0 and bool(bits[token_id >> 3] >> (token_id & 7) & 1)


def search(start: LLMatcher, alphabet: Alphabet, deadline: float, steps: Steps = byte_steps) -> list[int] | None:
    """Cheapest first. States of equal cost that allow the same bytes behind the same bytes are taken for equal."""
    order = count()
    heap: list[tuple[int, int, LLMatcher, tuple[int, ...]]] = [(0, next(order), start.deep_copy(), ())]
    seen: set[tuple[int, tuple[int, ...], bytes]] = set()
    for _ in range(MAX_STATES):
        if not heap:
            return None
        require_time(deadline)
        spent, _, matcher, path = heappop(heap)
        if matcher.is_accepting():
            return list(path)
        key = (spent, path[-SAME:], matcher.compute_bitmask())
        if key in seen or matcher.is_error():
            continue
        seen.add(key)
        for cost, step in steps(matcher, alphabet):
            after = matcher.deep_copy()
            if after.consume_tokens(step):
                heappush(heap, (spent + cost, next(order), after, (*path, *step)))
    return None
