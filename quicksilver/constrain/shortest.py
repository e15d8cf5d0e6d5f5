"""Finds a short completion of a text from the current state of a grammar, byte by byte.

A greedy walk closes what is open, chooses the smallest value and follows forced bytes. If it does not end, a bounded
search tries the literal words of the grammar's patterns, then single bytes. The matcher is not advanced. A limit on
processor time stops grammars with slow steps; ordinary ones need about a hundredth of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count, islice
from time import perf_counter, thread_time

from quicksilver.constrain.alphabet import Alphabet
from quicksilver.constrain.runtime.unique import Matcher

# Choices of the greedy walk.
MAX_STEPS = 300
# Processor time for one call.
LIMIT_S = 0.1
# States that a search visits.
MAX_STATES = 400
MAX_BYTES = 20_000
BRANCHES = 6
# States count as equal if they have the same last bytes, this many, and allow the same next bytes.
SAME = 6


class TooCostly(Exception):
    """The search exceeded its limit on processor time."""


class Deadline:
    """A limit on the processor time of this thread. It is read only after as much time has passed on the wall clock:
    processor time is never more, and reading it is a system call."""

    def __init__(self, limit_s: float) -> None:
        self._processor, self._wall = thread_time() + limit_s, perf_counter() + limit_s

    def check(self) -> None:
        """Raises TooCostly after the limit."""
        if perf_counter() > self._wall and thread_time() > self._processor:
            raise TooCostly


# Next steps from a state, each with its cost.
Steps = Callable[[Matcher, Alphabet], list[tuple[int, list[int]]]]


def shortest(matcher: Matcher, alphabet: Alphabet, words: Sequence[bytes] = ()) -> list[int] | None:
    """Ids, in the alphabet, of a short completion; empty if the text may end now, None if none was found. `words` are
    tried where the greedy walk does not end."""
    deadline = Deadline(LIMIT_S)
    path = greedy(matcher.deep_copy(), alphabet, deadline)
    if path is None and words:
        spelled = [ids for word in words if (ids := alphabet.spell(word))]
        path = search(matcher, alphabet, deadline, lambda state, _: word_steps(state, alphabet, spelled))
    return search(matcher, alphabet, deadline) if path is None else path


def greedy(matcher: Matcher, alphabet: Alphabet, deadline: Deadline) -> list[int] | None:
    path: list[int] = []
    for _ in range(MAX_STEPS):
        if matcher.is_error() or len(path) > MAX_BYTES:
            return None
        if matcher.is_accepting():
            return path
        deadline.check()
        step = matcher.compute_ff_tokens() or allowed(matcher, alphabet, 1)
        if not step or not matcher.consume_tokens(step):
            return None
        path += step
    return None


def byte_steps(matcher: Matcher, alphabet: Alphabet) -> list[tuple[int, list[int]]]:
    """A byte costs one."""
    forced = matcher.compute_ff_tokens()
    if forced:
        return [(len(forced), forced)]
    return [(1, [token_id]) for token_id in allowed(matcher, alphabet, BRANCHES)]


def word_steps(matcher: Matcher, alphabet: Alphabet, words: Sequence[list[int]]) -> list[tuple[int, list[int]]]:
    """Forced and closing bytes cost nothing. Otherwise the best byte and each matching word cost one."""
    forced = matcher.compute_ff_tokens()
    best = forced or allowed(matcher, alphabet, 1)
    if not best or forced or best[0] in alphabet.closing_ids:
        return [(0, best)] if best else []
    return [(1, best), *((1, word) for word in words if matcher.validate_tokens(word) == len(word))]


def allowed(matcher: Matcher, alphabet: Alphabet, most: int) -> list[int]:
    """The best allowed ids: special tokens, then closing bytes, then others."""
    bits = matcher.compute_bitmask()
    order = alphabet.from_text if is_set(bits, alphabet.letter_id) else alphabet.from_values
    has_special = any(map(bits.__getitem__, alphabet.special_bytes))
    found: list[int] = []
    for token_id in islice(order, 0 if has_special else len(alphabet.special_ids), None):
        if bits[token_id >> 3] >> (token_id & 7) & 1:
            found.append(token_id)
            if len(found) == most:
                break
    return found


def is_set(bits: bytes, token_id: int) -> bool:
    return token_id >= 0 and bool(bits[token_id >> 3] >> (token_id & 7) & 1)


def search(start: Matcher, alphabet: Alphabet, deadline: Deadline, steps: Steps = byte_steps) -> list[int] | None:
    """Uniform-cost search. States of equal cost, last bytes and allowed bytes count as equal."""
    order = count()
    heap: list[tuple[int, int, Matcher, tuple[int, ...]]] = [(0, next(order), start.deep_copy(), ())]
    seen: set[tuple[int, tuple[int, ...], bytes]] = set()
    for _ in range(MAX_STATES):
        if not heap:
            return None
        deadline.check()
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
