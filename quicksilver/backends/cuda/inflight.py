"""What a device that runs rounds ahead is believed to be doing: for which sequences, how far, with which drafts.

No device work. The host repeats on its own copy what each round does to the device's state, so it knows what the engine
should ask for next; whoever asks for anything else ends the flight. Near the end of an answer the engine asks for
shorter canvases than the device runs and gets the front of the device's: no length changes a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.cuda.logit_bias import HeadKind, kind_of
from quicksilver.backends.sequence import Sequence
from quicksilver.core import DecoderName
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.verify import count_accepted


@dataclass(frozen=True, slots=True)
class RoundShape:
    """A round graph: so many sequences with canvases of so many tokens. A canvas of one is plain autoregression, a
    round of one forward."""

    num_sequences: int
    canvas_len: int
    num_sets: int = 0
    """Draft sets that ride in the verify forward, one for every acceptance; 0 drafts in a forward of its own."""
    tree_rows: int = 0
    """Rows a sequence verifies where its drafts are a tree, which holds more than one token for a place; 0 verifies one
    draft, a row for each of its tokens. Only where a draft has a forward of its own."""

    @property
    def verify_rows(self) -> int:
        """Of each sequence, the last committed token's among them."""
        return self.tree_rows or self.canvas_len

    @property
    def num_verify(self) -> int:
        return self.num_sequences * self.verify_rows

    @property
    def num_beside(self) -> int:
        """Rows a sequence that ride in the verify forward: the masks of its sets."""
        return self.num_sets * (self.canvas_len - 1)

    @property
    def num_proposals(self) -> int:
        return self.num_verify + self.num_sequences * self.num_beside

    @property
    def draft(self) -> RoundShape:
        """The draft forward's: no tree has grown yet."""
        return replace(self, tree_rows=0)

    @property
    def has_halves(self) -> bool:
        """Whether a round is two forwards, so that one can begin in its middle."""
        return self.canvas_len > 1 and not self.num_sets

    def proposals_of(self, b: int) -> tuple[slice, slice]:
        """Where sequence b's verify rows and what rides beside them are among the proposals."""
        first, count = self.num_verify + b * self.num_beside, self.verify_rows
        return slice(b * count, (b + 1) * count), slice(first, first + self.num_beside)

    def takes(self, works: Seq[Work]) -> bool:
        """Whether a flight of this shape can begin with `works`."""
        if not works or len(works) > self.num_sequences or not all(fits(work, self.canvas_len) for work in works):
            return False
        num_verified = sum(is_verification(work) for work in works)
        num_drafted = sum(is_draft(work) for work in works)
        together = max(num_verified, num_drafted) if self.has_halves else num_verified + num_drafted
        return together == len(works)


def one_forward(num_sequences: int, canvas_len: int) -> RoundShape:
    return RoundShape(num_sequences, canvas_len, canvas_len)


def is_draft(work: Work) -> bool:
    """Whether `work` is one committed token and a canvas of masks: the first half of a verify round."""
    name = work.sequence.request.params.decoder.name
    if work.tail is None or name not in (DecoderName.VERIFY, DecoderName.AR) or work.end - work.start != 1:
        return False
    return not work.tail.is_causal and all(work.tail.is_masked)


def is_verification(work: Work) -> bool:
    """Whether `work` is one committed token and its draft: the second half."""
    return work.tail is not None and work.tail.is_causal and work.end - work.start == 1


def fits(work: Work, canvas_len: int) -> bool:
    """Whether a canvas of this length answers `work`: it asks for that length, or for less because the answer ends."""
    asked = len(work.tail.token_ids) + 1 if work.tail is not None else 0
    return min(canvas_len, work.sequence.room) <= asked <= canvas_len


@dataclass(slots=True)
class Flight:
    """The sequences a round graph is carrying, as the host last saw them, and the rounds it has not read yet."""

    shape: RoundShape
    index: dict[Sequence, int]
    ends: list[int]
    """Committed length of each sequence that the next `run` should ask for."""
    drafts: list[tuple[int, ...]]
    """The tokens that the next `run` should ask to verify; empty where it should ask for a draft."""
    kind: HeadKind
    rounds: deque[tuple[Seq[Tensor], Callable[[], None]]] = field(default_factory=deque)
    landed: Seq[Tensor] | None = None
    """By forward, results of the round whose verify half has not been asked for."""

    @classmethod
    def of(cls, shape: RoundShape, works: Seq[Work]) -> Flight:
        index = {work.sequence: b for b, work in enumerate(works)}
        drafts = [work.tail.token_ids if work.tail is not None and work.tail.is_causal else () for work in works]
        return cls(shape, index, [work.end for work in works], drafts, kind_of(works))

    @property
    def half(self) -> int:
        """Which forward of its round the next `run` asks for."""
        return int(self.shape.has_halves and any(self.drafts))

    def expects(self, works: Seq[Work]) -> bool:
        return len(works) == len(self.index) and all(self._expects(work) for work in works)

    def _expects(self, work: Work) -> bool:
        b = self.index.get(work.sequence)
        if b is None or work.tail is None or (work.start, work.end) != (self.ends[b] - 1, self.ends[b]):
            return False
        tokens, draft = work.tail.token_ids, self.drafts[b]
        is_verified = tokens == draft[: len(tokens)] and (work.tail.is_causal or not tokens)
        return fits(work, self.shape.canvas_len) and (is_verified if draft else is_draft(work))

    def has_pages(self, page_size: int, max_pages: int) -> bool:
        """Whether another round would write into pages that its sequences hold, however much is accepted."""
        canvas_len = self.shape.canvas_len
        longest = canvas_len if self.shape.num_sets else canvas_len + 1
        unread = len(self.rounds) * longest + (canvas_len if self.landed is not None else 0)
        reach = unread + canvas_len
        held = ((min(len(s.pages), max_pages) * page_size, self.ends[b]) for s, b in self.index.items())
        return all(slots >= end + reach for slots, end in held)

    def is_enough(self) -> bool:
        """Whether all answers end with the rounds that are under way, however little is accepted."""
        fewest = (2 if self.shape.has_halves else 1) * len(self.rounds) + (self.landed is not None)
        return all(sequence.room <= fewest for sequence in self.index)

    def take(self, works: Seq[Work], proposal: Proposal) -> list[Outcome]:
        """What a forward proposed, handed to who asked; goes on as the device did."""
        return [self._choose(work, proposal) if self.shape.num_sets else self._split(work, proposal) for work in works]

    def _split(self, work: Work, proposal: Proposal) -> Outcome:
        """The half of a round that `work` asks for."""
        b, canvas_len = self.index[work.sequence], self.shape.canvas_len
        mine = proposal[b * canvas_len : (b + 1) * canvas_len]
        tokens = mine.token_ids.tolist()
        self.ends[b] += 1 + count_accepted(tokens, self.drafts[b])
        self.drafts[b] = () if self.drafts[b] else tuple(tokens[1:])
        return Outcome(mine[: work.num_proposals], [])

    def _choose(self, work: Work, proposal: Proposal) -> Outcome:
        """What a round of one forward says: the verify rows' proposals and the set behind the last that agreed, which
        is the next draft. A first round that had nothing to verify answers the request for a draft."""
        b, num_masks = self.index[work.sequence], self.shape.canvas_len - 1
        verified, sets = (proposal[rows] for rows in self.shape.proposals_of(b))
        accepted, is_first = count_accepted(verified.token_ids.tolist(), self.drafts[b]), not self.drafts[b]
        chosen = sets[accepted * num_masks : (accepted + 1) * num_masks]
        self.drafts[b] = tuple(chosen.token_ids.tolist())
        self.ends[b] += accepted + 1
        if is_first:
            return Outcome(_joined(verified[:1], chosen)[: work.num_proposals], [])
        return Outcome(verified[: work.num_proposals], [], draft=chosen)


def _joined(a: Proposal, b: Proposal) -> Proposal:
    return Proposal(*(torch.cat((getattr(a, name), getattr(b, name))) for name in Proposal.__slots__))
