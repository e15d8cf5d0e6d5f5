"""Scoring: log-probabilities of given tokens, computed in one or several forwards.

A `Scorer` is a decoder whose result is read from log-probabilities. It uses the scheduler, the pages and the prefix
cache like any other decoder. The canvas holds only the number of passes that are done.

Several short continuations form one pass: independent branches after the same prompt, which write no KV. A continuation
with more rows than one pass may have is scored as causal rows that do write KV: each pass commits its tokens, and the
last one returns the sequence to its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, islice
from typing import TypeVar

from quicksilver.diffusion.decoder import START, Canvas, Decision, Place, Tail
from quicksilver.diffusion.sample import Proposal

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ScorePass:
    """The rows of one forward. `tail.targets` names the tokens whose log-probabilities it yields."""

    tail: Tail
    commit: tuple[int, ...] = ()  # tokens that become context of the next pass
    is_chunk: bool = False  # part of one long continuation; without `commit` it is the last part


@dataclass(frozen=True, slots=True)
class Scorer:
    passes: tuple[ScorePass, ...]
    lengths: tuple[int, ...]  # targets per continuation

    def open(self, max_tokens: int, place: Place = START) -> Canvas:
        return Canvas.blank(1)

    def tail(self, canvas: Canvas, tokens: Sequence[int] = ()) -> Tail:
        return self.passes[canvas.step].tail

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        """The canvas of the next pass, or None after the last one."""
        done = self.passes[canvas.step]
        is_last = canvas.step + 1 == len(self.passes)
        following = None if is_last else replace(canvas, step=canvas.step + 1)
        return Decision(list(done.commit), following, num_accepted=len(done.tail.token_ids) if done.commit else 0)

    def ends_chunks(self, canvas: Canvas) -> bool:
        """Whether this pass is the last part of a long continuation, so that the sequence returns to its prompt."""
        done = self.passes[canvas.step]
        return done.is_chunk and not done.commit

    def split(self, scored: Sequence[Value]) -> tuple[tuple[Value, ...], ...]:
        """The values of all passes, one tuple per continuation."""
        rest = iter(scored)
        return tuple(tuple(islice(rest, length)) for length in self.lengths)

    def with_top(self, num_top: int | None) -> Scorer:
        """Passes that also yield ranks and `num_top` alternatives."""
        if num_top is None:
            return self
        return replace(self, passes=tuple(replace(p, tail=replace(p.tail, num_top=num_top)) for p in self.passes))


def score_next(continuations: Sequence[Sequence[int]], next_tokens: Sequence[Sequence[int]], max_rows: int) -> Scorer:
    """The probabilities of several tokens right after each continuation. A continuation of more than `max_rows` tokens
    has a pass of its own."""
    passes, group, num_rows = list[ScorePass](), list[tuple[Sequence[int], Sequence[int]]](), 0
    for tokens, asked in zip(continuations, next_tokens, strict=True):
        if group and num_rows + len(tokens) > max_rows:
            passes.append(_next_branches(group))
            group, num_rows = [], 0
        group.append((tokens, asked))
        num_rows += len(tokens)
    passes.append(_next_branches(group))
    return Scorer(tuple(passes), tuple(map(len, next_tokens)))


def _next_branches(group: Sequence[tuple[Sequence[int], Sequence[int]]]) -> ScorePass:
    """One branch per continuation; its last row predicts the tokens that may follow."""
    last_rows = accumulate(len(tokens) for tokens, _ in group)
    targets = tuple((row, token) for row, (_, asked) in zip(last_rows, group, strict=True) for token in asked)
    rows = tuple(token for tokens, _ in group for token in tokens)
    branches = tuple(len(tokens) for tokens, _ in group)
    return ScorePass(Tail(rows, (False,) * len(rows), branches=branches, targets=targets))


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
        is_last = start + len(predicted) == len(tokens)
        yield ScorePass(tail, () if is_last else predicted, is_chunk=True)


def score_masked(tokens: Sequence[int], is_masked: Sequence[bool]) -> Scorer:
    """The masked positions of one canvas given its visible ones: a sample of the diffusion bound."""
    targets = tuple((i, token) for i, (token, masked) in enumerate(zip(tokens, is_masked, strict=True)) if masked)
    return Scorer((ScorePass(Tail(tuple(tokens[:-1]), tuple(is_masked[:-1]), targets=targets)),), (len(targets),))
