"""Scoring: log-probabilities of given tokens, computed in one or several forwards.

A `Scorer` is a decoder whose result is read from log-probabilities. It uses the scheduler, the pages and the prefix
cache like any other decoder. The canvas holds only the number of passes that are done.

Several short continuations form one pass: independent branches after the same text, which write no KV. Tokens that all
branches of a pass begin with are part of that text, so they are computed once. A continuation with more rows than one
pass may have is scored as causal rows that do write KV: each pass keeps the tokens of the passes before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, islice, pairwise
from typing import TypeVar

from quicksilver.diffusion.decoder import START, Canvas, Decision, Place, Tail
from quicksilver.diffusion.sample import Proposal

Value = TypeVar("Value")
# A further pass costs about as much as this share of the rows of a full one.
PASS_COST = 1 / 8


@dataclass(frozen=True, slots=True)
class ScorePass:
    """The rows of one forward. `tail.targets` names the tokens whose log-probabilities it yields."""

    tail: Tail
    # The text between the prompt and the tail: tokens that stay from the pass before, then further ones.
    num_kept: int = 0
    added: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scorer:
    passes: tuple[ScorePass, ...]
    lengths: tuple[int, ...]  # targets per continuation
    order: tuple[int, ...] = ()  # continuations in the order of the passes; empty if they are in order
    is_branched: bool = False  # all passes consist of branches

    def open(self, max_tokens: int, place: Place = START) -> Canvas:
        return Canvas.blank(1)

    def tail(self, canvas: Canvas, tokens: Sequence[int] = ()) -> Tail:
        return self.passes[canvas.step].tail

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        """The canvas of the next pass, or None after the last one."""
        is_last = canvas.step + 1 == len(self.passes)
        return Decision(canvas=None if is_last else replace(canvas, step=canvas.step + 1))

    def split(self, scored: Sequence[Value]) -> tuple[tuple[Value, ...], ...]:
        """The values of all passes, one tuple per continuation."""
        rest, order = iter(scored), self.order or range(len(self.lengths))
        found = {i: tuple(islice(rest, self.lengths[i])) for i in order}
        return tuple(found[i] for i in range(len(self.lengths)))

    def with_top(self, num_top: int | None) -> Scorer:
        """Passes that also yield ranks and `num_top` alternatives."""
        if num_top is None:
            return self
        return replace(self, passes=tuple(replace(p, tail=replace(p.tail, num_top=num_top)) for p in self.passes))


def score_next(continuations: Sequence[Sequence[int]], next_tokens: Sequence[Sequence[int]], max_rows: int) -> Scorer:
    """The plan that yields the probabilities of several tokens right after each continuation. A continuation of more
    than `max_rows` tokens has a pass of its own."""
    order = sorted(range(len(continuations)), key=lambda i: tuple(continuations[i]))
    asked = [(continuations[i], next_tokens[i]) for i in order]
    passes, start, context = list[ScorePass](), 0, tuple[int, ...]()
    for end, num_shared in _cheapest_groups([tokens for tokens, _ in asked], max_rows):
        shared = tuple(asked[start][0][:num_shared])
        num_kept = _num_equal(context, shared)
        tail = _next_branches([(tokens[num_shared:], after) for tokens, after in asked[start:end]])
        passes.append(ScorePass(tail, num_kept, shared[num_kept:]))
        start, context = end, shared
    return Scorer(tuple(passes), tuple(map(len, next_tokens)), tuple(order), is_branched=True)


def _cheapest_groups(rows: Sequence[Sequence[int]], max_rows: int) -> list[tuple[int, int]]:
    """Cuts sorted rows of tokens into groups of at most `max_rows` tokens, where those that a whole group begins with
    count once. Minimises the tokens of all groups plus a cost of each group. Returns the end of each group and the
    number of tokens that it shares; one token of each row is not shared."""
    pass_cost = max_rows * PASS_COST
    num_equal = [0, *(min(_num_equal(a, b), len(a) - 1) for a, b in pairwise(rows))]
    # The least cost of the rows before each index; where the last group of these rows begins, and what it shares.
    costs, last = [0.0], list[tuple[int, int]]()
    for end in range(1, len(rows) + 1):
        num_tokens, num_shared = len(rows[end - 1]), max_rows
        best, choice = costs[end - 1] + num_tokens, (end - 1, 0)
        for start in range(end - 2, -1, -1):
            num_shared = min(num_shared, num_equal[start + 1])
            num_tokens += len(rows[start])
            cost = num_tokens - num_shared * (end - start - 1)
            if cost > max_rows:
                break
            if costs[start] + cost < best:
                best, choice = costs[start] + cost, (start, num_shared)
        costs.append(best + pass_cost)
        last.append(choice)
    groups, end = list[tuple[int, int]](), len(rows)
    while end:
        start, num_shared = last[end - 1]
        groups, end = [(end, num_shared), *groups], start
    return groups


def _num_equal(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of leading tokens that are equal."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _next_branches(group: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tail:
    """One branch per continuation; its last row predicts the tokens that may follow."""
    last_rows = accumulate(len(tokens) for tokens, _ in group)
    targets = tuple((row, token) for row, (_, asked) in zip(last_rows, group, strict=True) for token in asked)
    rows = tuple(chain(*(tokens for tokens, _ in group)))
    return Tail(rows, (False,) * len(rows), branches=tuple(len(tokens) for tokens, _ in group), targets=targets)


def score_continuations(continuations: Sequence[Sequence[int]], max_rows: int) -> Scorer:
    """The causal likelihood of each continuation, in passes of at most `max_rows` tail rows."""
    passes, group, num_rows = list[ScorePass](), list[Sequence[int]](), 0
    for tokens in continuations:
        rows = len(tokens) - 1  # the last token needs no row: it is only predicted
        if group and num_rows + rows > max_rows:
            passes.append(_branches(group))
            group, num_rows = [], 0
        if rows > max_rows:
            passes += _chunks(tokens, max_rows)
        else:
            group.append(tokens)
            num_rows += rows
    if group:
        passes.append(_branches(group))
    return Scorer(tuple(passes), tuple(map(len, continuations)))


def _branches(continuations: Sequence[Sequence[int]]) -> ScorePass:
    """The first token of each continuation is predicted by the last context row, the others by their own branch."""
    targets, next_row = list[tuple[int, int]](), count(1)
    for tokens in continuations:
        targets += [(0, tokens[0]), *((next(next_row), token) for token in tokens[1:])]
    inner = tuple(token for tokens in continuations for token in tokens[:-1])
    branches = tuple(len(tokens) - 1 for tokens in continuations)
    return ScorePass(Tail(inner, (False,) * len(inner), branches=branches, targets=tuple(targets)))


def _chunks(tokens: Sequence[int], max_rows: int) -> Iterator[ScorePass]:
    """A pass with n tail rows predicts n + 1 tokens: its last context row predicts the first of them."""
    for start in range(0, len(tokens), max_rows + 1):
        predicted = tuple(tokens[start : start + max_rows + 1])
        rows = predicted[:-1]
        tail = Tail(rows, (False,) * len(rows), is_causal=True, targets=tuple(enumerate(predicted)))
        # The pass before had rows for all tokens before this one but the last.
        yield ScorePass(tail, max(start - 1, 0), tuple(tokens[max(start - 1, 0) : start]))


def score_masked(tokens: Sequence[int], is_masked: Sequence[bool]) -> Scorer:
    """The masked positions of one canvas given its visible ones: a sample of the diffusion bound."""
    targets = tuple((i, token) for i, (token, masked) in enumerate(zip(tokens, is_masked, strict=True)) if masked)
    return Scorer((ScorePass(Tail(tuple(tokens[:-1]), tuple(is_masked[:-1]), targets=targets)),), (len(targets),))
