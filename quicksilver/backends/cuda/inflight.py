"""Host-side mirror of the verify rounds that are queued on the device.

This module does no device work. The host applies the state change of each round to its own copy, which gives the work
that the engine should pass next. If the engine passes different work, the mirror is discarded. Near the end of an
answer the engine may pass a shorter canvas than the device runs; it then gets the first rows. The canvas length does
not affect which tokens are committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from torch import Tensor

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.backends.cuda.logit_bias import ADAPTER_OPTIONS, SamplingOptions, options_of
from quicksilver.core import DecoderName
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import count_accepted


@dataclass(frozen=True, slots=True)
class RoundShape:
    """The shape of a round graph. A canvas of one token is plain autoregression: one forward per round. A longer
    canvas has two: a draft forward and a verify forward."""

    num_sequences: int
    canvas_len: int
    # Verify rows per sequence of a draft tree, which holds several candidate tokens per position. 0 verifies a single
    # draft, one row per token.
    tree_rows: int = 0

    @property
    def verify_rows(self) -> int:
        """Verify rows per sequence. The first is the row of the last committed token."""
        return self.tree_rows or self.canvas_len

    @property
    def num_verify(self) -> int:
        return self.num_sequences * self.verify_rows

    @property
    def draft(self) -> RoundShape:
        """The shape of the draft forward, which has no tree."""
        return replace(self, tree_rows=0)

    @property
    def has_two_forwards(self) -> bool:
        """Draft and verify; such a round can start at the verify forward."""
        return self.canvas_len > 1

    def rows_of(self, b: int) -> slice:
        """The verify rows of sequence b."""
        return slice(b * self.verify_rows, (b + 1) * self.verify_rows)

    def accepts(self, works: Seq[Work]) -> bool:
        """Whether rounds of this shape can start with `works`. Drafts from a prediction are made by the host."""
        if any(work.sequence.request.prediction for work in works):
            return False
        if not works or len(works) > self.num_sequences or not all(fits(work, self.canvas_len) for work in works):
            return False
        num_verified = sum(is_verification(work) for work in works)
        num_drafted = sum(is_draft(work) for work in works)
        matching = max(num_verified, num_drafted) if self.has_two_forwards else num_verified + num_drafted
        return matching == len(works)


def is_draft(work: Work) -> bool:
    """Whether `work` is one committed token and a canvas of masks: the first forward of a verify round."""
    name = work.sequence.request.params.decoder.name
    if work.tail is None or name not in (DecoderName.VERIFY, DecoderName.AR) or work.end - work.start != 1:
        return False
    return not work.tail.is_causal and all(work.tail.is_masked)


def is_verification(work: Work) -> bool:
    """Whether `work` is one committed token and its draft: the second forward of a verify round."""
    return work.tail is not None and work.tail.is_causal and work.end - work.start == 1


def fits(work: Work, canvas_len: int) -> bool:
    """Whether a canvas of `canvas_len` answers `work`: the lengths are equal, or the answer has fewer tokens left."""
    asked = len(work.tail.token_ids) + 1 if work.tail is not None else 0
    return min(canvas_len, work.sequence.room) <= asked <= canvas_len


@dataclass(slots=True)
class InFlightRounds:
    """The sequences of a running round graph as the host last saw them, and the rounds it has not read yet."""

    shape: RoundShape
    index: dict[Sequence, int]
    # Per sequence: the committed length that the next `run` should ask for.
    ends: list[int]
    # Per sequence: the tokens that the next `run` should verify; empty if it should draft.
    drafts: list[tuple[int, ...]]
    # Per sequence: the tokens that the device committed in the last forward that was read.
    committed: list[tuple[int, ...]]
    options: SamplingOptions
    has_adapters: bool = False
    # Launched rounds: where their results arrive, and a call that waits for them.
    queued: deque[tuple[Seq[Tensor], Callable[[], None]]] = field(default_factory=deque)
    # Results per forward of the round whose verify half has not been requested yet.
    arrived: Seq[Tensor] | None = None

    @classmethod
    def start(cls, shape: RoundShape, works: Seq[Work]) -> InFlightRounds:
        index = {work.sequence: b for b, work in enumerate(works)}
        drafts = [work.tail.token_ids if work.tail is not None and work.tail.is_causal else () for work in works]
        ends = [work.end for work in works]
        has_adapters = any(work.sequence.adapter is not None for work in works)
        options = ADAPTER_OPTIONS if has_adapters else options_of(works)
        return cls(shape, index, ends, drafts, [()] * len(works), options, has_adapters)

    @property
    def half(self) -> int:
        """The forward of a round that the next `run` asks for: 0 drafts, 1 verifies."""
        return int(self.shape.has_two_forwards and any(self.drafts))

    def expects(self, works: Seq[Work]) -> bool:
        """Whether `works` ask for what the device computes next."""
        return len(works) == len(self.index) and all(self._expects(work) for work in works)

    def _expects(self, work: Work) -> bool:
        b = self.index.get(work.sequence)
        if b is None or work.tail is None or (work.start, work.end) != (self.ends[b] - 1, self.ends[b]):
            return False
        # The engine commits other tokens where a thinking budget ends the thought.
        committed = self.committed[b]
        if tuple(work.sequence.tokens[work.end - len(committed) : work.end]) != committed:
            return False
        tokens, draft = work.tail.token_ids, self.drafts[b]
        is_verified = tokens == draft[: len(tokens)] and (work.tail.is_causal or not tokens)
        return fits(work, self.shape.canvas_len) and (is_verified if draft else is_draft(work))

    def has_pages(self, page_size: int, max_pages: int) -> bool:
        """Whether another round writes only into pages that its sequences hold, at any acceptance."""
        canvas_len = self.shape.canvas_len
        unread = len(self.queued) * (canvas_len + 1) + (canvas_len if self.arrived is not None else 0)
        reach = unread + canvas_len
        held = ((min(len(s.pages), max_pages) * page_size, self.ends[b]) for s, b in self.index.items())
        return all(slots >= end + reach for slots, end in held)

    def covers_remaining(self) -> bool:
        """Whether the queued rounds finish all answers even if no draft is accepted."""
        fewest = (2 if self.shape.has_two_forwards else 1) * len(self.queued) + (self.arrived is not None)
        return all(sequence.room <= fewest for sequence in self.index)

    def deliver(self, works: Seq[Work], proposal: Proposal) -> list[Outcome]:
        """Split one forward's proposals by request, and advance the mirror as the device did."""
        return [self._outcome(work, proposal) for work in works]

    def _outcome(self, work: Work, proposal: Proposal) -> Outcome:
        b, canvas_len = self.index[work.sequence], self.shape.canvas_len
        rows = proposal[b * canvas_len : (b + 1) * canvas_len]
        tokens = rows.token_ids.tolist()
        self.committed[b] = tuple(tokens[: 1 + count_accepted(tokens, self.drafts[b])])
        self.ends[b] += len(self.committed[b])
        self.drafts[b] = () if self.drafts[b] else tuple(tokens[1:])
        return Outcome(rows[: work.num_proposals], [])
