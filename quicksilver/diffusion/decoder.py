"""The `Decoder` interface and its records: `Canvas`, `Tail` and `Decision`.

In an autoregressive model a row at position p predicts token p + 1. So the last context row proposes canvas position 0,
and the rows of the tail propose the other positions. `blocks` has the layouts of other dialects. A decoder is
stateless: everything that lasts from one forward to the next is in the Canvas. `stop_early` and `truncate` end a
request at a stop token or at its token limit; the engine and the reference loop share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from quicksilver.core import FinishReason
from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True, slots=True)
class Tail:
    """The rows after the context. Causal rows write their KV; canvas rows attend to each other and write nothing."""

    token_ids: tuple[int, ...] = ()
    is_masked: tuple[bool, ...] = ()  # rows with the mask embedding of their canvas index; all False if causal
    is_causal: bool = False
    has_causal_canvas: bool = False  # canvas rows attend to the canvas up to themselves only
    num_fixed: int = 0  # leading rows that are committed tokens; the context ends before them
    positions: tuple[int, ...] = ()  # of each row, relative to the end of the context; empty if in order
    proposing: tuple[int, int] | None = None  # rows that propose; row 0 is the last context row, see `proposing_rows`
    row_of: tuple[int, ...] = ()  # the proposing row of each canvas position, where the rows are in another order
    num_known: int | None = None  # length of `known`, where the rows are in another order
    branches: tuple[int, ...] = ()  # scoring: lengths of independent causal branches, which write no KV
    targets: tuple[tuple[int, int], ...] = ()  # scoring: (row, token) to score; row 0 is the last context row
    soft: Tensor | None = None  # soft embeddings of the rows (rows, dim); None: zeros, or a network without them
    num_top: int | None = None  # scoring: alternatives per target; None computes neither these nor ranks

    @property
    def known(self) -> tuple[int, ...]:
        """The leading decided tokens. Their rows have a fully decided left context, so a grammar applies exactly."""
        if self.num_known is not None:
            return self.token_ids[: self.num_known]
        end = self.is_masked.index(True) if True in self.is_masked else len(self.token_ids)
        return self.token_ids[self.num_fixed : end]

    @property
    def proposing_rows(self) -> tuple[int, int]:
        """First and one past the last row that proposes. Row 0 is the last context row, row 1 the first of the tail; by
        default all of them propose."""
        return self.proposing or (0, 1 + len(self.token_ids))

    @property
    def num_proposals(self) -> int:
        first, end = self.proposing_rows
        return end - first


@dataclass(frozen=True, slots=True)
class Canvas:
    """The positions after the committed text that are predicted together. Its arrays are never written to."""

    token_ids: npt.NDArray[np.int64]  # (canvas_len,), the current guess; undefined where masked and never proposed
    is_masked: npt.NDArray[np.bool_]  # (canvas_len,)
    confidence: npt.NDArray[np.float32]  # (canvas_len,)
    step: int = 0  # forwards that this canvas has been through
    is_draft: bool = False  # True between the draft forward and the verify forward of a round
    num_passes: int = 0  # forwards since the last mask was filled (`edit`)
    is_predicted: bool = False  # a draft that was copied from the request's prediction
    num_fixed: int = 0  # committed tokens before it that are rows of the same canvas
    offset: int = 0  # index of its first position in its block, or in the answer where the answer is one block
    num_entering: int = 0  # masks that enter after the next forward (`window`)
    # Of `canvas`: tokens of its rows, which may still change where `is_masked` is False; the position of its first
    # token; and the soft embeddings of its rows.
    noisy_ids: npt.NDArray[np.int64] | None = None
    start: int = 0
    soft: Tensor | None = None

    @staticmethod
    @cache
    def blank(canvas_len: int) -> Canvas:
        """All masks. Cached: one object per length serves all requests."""
        arrays = (np.zeros(canvas_len, np.int64), np.ones(canvas_len, np.bool_), np.zeros(canvas_len, np.float32))
        for array in arrays:
            array.setflags(write=False)
        return Canvas(*arrays)

    @staticmethod
    def predicted(token_ids: Sequence[int]) -> Canvas:
        """A draft that no forward has proposed."""
        tokens, count = np.array(token_ids, np.int64), len(token_ids)
        return Canvas(tokens, np.zeros(count, np.bool_), np.ones(count, np.float32), is_draft=True, is_predicted=True)

    @property
    def is_fresh(self) -> bool:
        """Whether it has not been through a forward yet."""
        return self.step == 0 and not self.is_draft

    @property
    def num_decided(self) -> int:
        """Length of the leading run without masks."""
        masked = np.flatnonzero(self.is_masked)
        return int(masked[0]) if len(masked) else len(self.is_masked)

    @property
    def decided_tokens(self) -> list[int | None]:
        """The token of each position, None where it is masked."""
        pairs = zip(self.token_ids.tolist(), self.is_masked.tolist(), strict=True)
        return [None if is_masked else token_id for token_id, is_masked in pairs]

    def with_decided(self, tokens: Sequence[int | None]) -> Canvas:
        """The canvas with these tokens decided and the positions of None masked, which keep their guesses."""
        guesses = self.token_ids.tolist()
        token_ids = [guess if token is None else token for token, guess in zip(tokens, guesses, strict=True)]
        is_masked = [token is None for token in tokens]
        return replace(self, token_ids=np.array(token_ids, np.int64), is_masked=np.array(is_masked, np.bool_))


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of `Decoder.decide` for one forward."""

    commit: list[int] = field(default_factory=list)  # tokens that become final, left to right
    canvas: Canvas | None = None  # the canvas of the next forward; None opens a new one
    num_accepted: int = 0  # leading rows of a causal tail that were confirmed, so that their KV is final
    num_drafted: int = 0
    # Leading decided positions that this forward left as they were, where decided positions may still change (`edit`).
    num_settled: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a canvas begins: after `num_tokens` tokens of text, of which the first `num_prompt` are the prompt."""

    num_tokens: int = 0
    num_prompt: int = 0


START = Place()


class Decoder(Protocol):
    """One decoding algorithm, configured for one request."""

    def open(self, max_tokens: int, place: Place = START) -> Canvas:
        """A new canvas at `place`. It has at most `max_tokens` positions, unless it must end at the end of a block."""

    def tail(self, canvas: Canvas, tokens: Sequence[int] = ()) -> Tail:
        """The rows that follow the context in the next forward; `tokens` is the text before the canvas."""

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        """`proposal` has one entry per position of the canvas, in order.

        Commits at least one token after finitely many calls, whatever is proposed.
        """


def canvas_tail(canvas: Canvas) -> Tail:
    """Rows for every position but the last: the row of position i proposes position i + 1."""
    return Tail(tuple(canvas.token_ids.tolist()[:-1]), tuple(canvas.is_masked.tolist()[:-1]))


def stop_early(decision: Decision, stop_ids: Sequence[int], *, has_grammar: bool = False) -> Decision:
    """Commit a canvas up to a decided stop token that has no mask before it, even if the decoder would continue.

    Canvases whose decided tokens may still change are excepted: random ones, and those of `edit`. A grammar allows
    nothing after the stop token: under one, a canvas of `edit` ends once a forward leaves the tokens up to there
    unchanged.
    """
    canvas, num_settled = decision.canvas, decision.num_settled
    if decision.commit or canvas is None or canvas.is_draft or canvas.noisy_ids is not None:
        return decision
    if num_settled is not None and not has_grammar:
        return decision
    num_final = canvas.num_decided if num_settled is None else min(canvas.num_decided, num_settled)
    run = canvas.token_ids[:num_final].tolist()
    if not any(token in stop_ids for token in run):
        return decision
    return replace(decision, commit=run, canvas=None)


def truncate(tokens: Sequence[int], stop_ids: Sequence[int], max_tokens: int) -> tuple[list[int], FinishReason | None]:
    """The part of `tokens` that belongs to the answer (without the stop token), and why it ends there, if it does."""
    for i, token in enumerate(tokens[: max_tokens + 1]):
        if token in stop_ids:
            return list(tokens[:i]), FinishReason.STOP
    if len(tokens) >= max_tokens:
        return list(tokens[:max_tokens]), FinishReason.LENGTH
    return list(tokens), None
