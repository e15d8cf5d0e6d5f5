"""The interface between the engine and a device: `Work` in, `Outcome` out.

The engine decides which sequences run in a step and builds one `Work` for each. A `Backend` runs them in one forward
and returns one `Outcome` for each. `choose.make_backend` builds the backend of a device.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from quicksilver.backends.persistent_batch import PersistentBatch
from quicksilver.backends.round_cost import RoundCost
from quicksilver.backends.sequence import Sequence
from quicksilver.core import TokenLogprob
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.sample import Proposal
from quicksilver.model.lowrank import Adapter
from quicksilver.model.row_adapters import RowAdapter


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """KV memory that a backend needs beyond the pages of its requests."""

    scratch_slots: int = 0  # KV slots outside every page, for rows whose KV is copied to a page or dropped
    spare_pages: int = 0  # pages that each sequence should hold beyond its next forward


@dataclass(frozen=True, slots=True)
class Work:
    """The rows (token positions) of one sequence in one forward: the context tokens `[start, end)` and, if the context
    ends there, the tail, i.e. the rows of its canvas or draft.

    The context may be empty. Committed tokens that are rows of the canvas belong to the tail.
    """

    sequence: Sequence
    start: int
    end: int
    tail: Tail | None

    @property
    def num_rows(self) -> int:
        return self.end - self.start + (len(self.tail.token_ids) if self.tail else 0)

    @property
    def num_proposals(self) -> int:
        """Rows whose logits are needed, one per canvas position; none while a prompt is being prefilled."""
        return self.tail.num_proposals if self.tail is not None else 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one forward for one sequence."""

    proposal: Proposal
    logprobs: list[TokenLogprob]  # one per proposing row if the request asks for them, else empty
    target_logprobs: Tensor | None = None  # of the tail's targets, in order
    target_details: tuple[TokenLogprob, ...] = ()  # the same with ranks and alternatives, if the tail asks for them


class Backend(Protocol):
    """A network, its weights and its KV cache on one device."""

    @property
    def round_cost(self) -> RoundCost | None:
        """Measured times of forwards and rounds; None if the backend measures none."""

    @property
    def persistent(self) -> PersistentBatch | None:
        """Slots whose sequences decode ahead of the host; None if the device has none. `run` is independent of them."""

    @property
    def supports_adapters(self) -> bool:
        """Whether sequences may have adapters."""

    def convert_adapter(self, adapter: Adapter) -> RowAdapter:
        """The adapter, which fits the network, in the form that this backend computes. Any thread may call it."""

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        """One forward over all rows of `works`. An outcome is None for work without a tail (a chunk of a prompt).

        If it raises, no sequence has changed and the caller may run the works one by one.
        """
