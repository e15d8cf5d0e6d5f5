"""The interface to decoding rounds that run on a device ahead of the host, for hundreds of sequences. No torch.

A sequence occupies a slot from the moment it joins until it leaves. Its last token, position and page table are on the
device, so a round needs no input from the host. Sequences join and leave between rounds; the other slots are not
affected. The host reads the tokens of a round while later rounds run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quicksilver.backends.sequence import Sequence


@dataclass(frozen=True, slots=True)
class RoundTokens:
    """The tokens that one round decided, by slot. Slots that were empty when the round was queued hold any values."""

    token_ids: npt.NDArray[np.int32]  # (slots, most tokens of a round)
    counts: npt.NDArray[np.int64]  # (slots,): how many of them are decided, at least 1
    is_finite: npt.NDArray[np.bool_]  # (slots,): False where the logits were not usable


class PersistentBatch(Protocol):
    """Slots on a device. Calls take effect for the rounds that are queued after them."""

    # Called by a backend's `run` when its forward is queued, before it waits for the result. Rounds that are queued
    # then keep the device busy while the host processes that result.
    before_wait: Callable[[], None]

    @property
    def num_slots(self) -> int: ...

    def accepts(self, sequence: Sequence) -> bool:
        """Whether rounds can serve the request: its sampling options are constant and known to the device."""

    def join(self, slot: int, sequence: Sequence) -> None:
        """The sequence decodes in `slot` from now on. All of its tokens but the last one are cached."""

    def leave(self, slot: int) -> None:
        """The slot is empty from now on."""

    def extend_pages(self, slot: int, first: int, pages: list[int]) -> None:
        """The page table of the slot continues with `pages` at index `first`."""

    def launch(self, num_slots: int) -> None:
        """Queue a round over the first `num_slots` slots."""

    def wait(self) -> RoundTokens:
        """The tokens of the oldest queued round. The arrays are valid until the next call."""

    def discard_rounds(self) -> None:
        """Forget the queued rounds. They still run, before anything that is queued later."""
