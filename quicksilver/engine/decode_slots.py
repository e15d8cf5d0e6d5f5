"""Sequences that decode in a `PersistentBatch`: their slots, the rounds in flight, and the commits. No torch.

The state that every round needs is kept in arrays with one entry per slot, so the cost of a step for one sequence is
that of its tokens and its event. A round is read one step after it was queued. If a sequence has left its slot by then,
or another one occupies it, the tokens of that slot are dropped. The sequence itself always holds its committed state,
so it may leave at any time and continue in ordinary forwards.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from quicksilver.backends.base import PersistentBatch, RoundTokens, Sequence
from quicksilver.core import DecoderName, Delta, FinishReason
from quicksilver.engine.pages import PagePool

# Rounds in flight when the host starts to wait: one runs, one is queued.
ROUNDS_AHEAD = 2
# Stop tokens of one request that are compared in the arrays.
MAX_STOP_IDS = 8
# Pages that a slot receives at a time: each change of a page table is a transfer.
PAGES_AT_ONCE = 8
# Fewest sequences that decode in slots. Fewer are faster in verify rounds with draft trees, outside of the slots.
MIN_SEQUENCES = 5
# Steps without slots after a round failed. Ordinary forwards find out which sequence is the cause, and only that one
# fails.
PAUSE_STEPS = 16
# Slots of the smallest graph; the others double in size.
SMALLEST_GRAPH = 16
# Sequences move to a graph of half the size if they fill at most this share of it, so that a batch of about that size
# does not change graphs all the time.
SHRINK_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class RoundCommit:
    """What one round added: its events, the requests that failed, and counts for statistics."""

    deltas: list[Delta]
    failed: list[Sequence]
    num_sequences: int = 0
    num_tokens: int = 0


class DecodeSlots:
    def __init__(self, batch: PersistentBatch, pool: PagePool, page_size: int) -> None:
        self.batch, self._pool, self._page_size = batch, pool, page_size
        count = batch.num_slots
        self._sequences: list[Sequence | None] = [None] * count
        self._free = list(range(count))
        self._used = 0  # occupied slots
        self._is_active = False
        self._pause = 0  # steps without slots, after a round failed
        self._num_joined = 0
        # By slot. `_occupant` numbers the sequences in the order in which they joined; 0 is an empty slot.
        self._occupant = np.zeros(count, dtype=np.int64)
        self._length, self._room, self._held = (np.zeros(count, dtype=np.int64) for _ in range(3))
        self._stop_ids = np.full((count, MAX_STOP_IDS), -1, dtype=np.int32)
        self._queued: deque[npt.NDArray[np.int64]] = deque()  # occupants of each round in flight

    def __len__(self) -> int:
        return self._used

    @property
    def request_ids(self) -> list[str]:
        return [sequence.request.id for sequence in self._sequences if sequence is not None] if self._used else []

    @property
    def has_rounds(self) -> bool:
        return bool(self._queued)

    def begin_step(self, running: list[Sequence]) -> None:
        """Decides whether this number of requests decodes in slots. If it does not, frees all slots."""
        self._pause -= self._pause > 0
        num_plain = sum(map(self.is_plain, running))
        self._is_active = not self._pause and num_plain >= MIN_SEQUENCES - self._is_active
        if not self._is_active:
            self.leave_all()
        self._compact()

    def is_plain(self, sequence: Sequence) -> bool:
        """Whether the sequence can decode in a slot now: nothing has to be checked between its tokens."""
        if sequence.fits_slots is None:
            request = sequence.request
            sequence.fits_slots = (
                request.params.decoder.name in (DecoderName.AR, DecoderName.VERIFY)
                and len(request.params.stop_ids) <= MAX_STOP_IDS
                and not request.wants_frames
                and not request.prediction
                and self.batch.accepts(sequence)
            )
        return sequence.fits_slots and sequence.constraint is None and not sequence.is_thinking

    def will_take(self, sequence: Sequence) -> bool:
        """Whether the sequence should decode in a slot after its prompt."""
        return self._is_active and self.is_plain(sequence)

    def take(self, sequence: Sequence) -> bool:
        """Moves a running sequence into a slot, if its next forward is a plain decoding step and there is room."""
        if not self._is_active or not self._free or not self.is_plain(sequence):
            return False
        canvas = sequence.canvas
        if len(sequence.tokens) - sequence.kv_len != 1 or (canvas is not None and not canvas.is_fresh):
            return False
        if not self._hold_pages(sequence):
            return False
        sequence.canvas = None
        self._join(sequence, heappop(self._free))
        return True

    def leave(self, sequence: Sequence) -> None:
        """Empties the slot of a sequence that ended, was preempted, or continues in ordinary forwards."""
        slot = sequence.slot
        if slot >= 0:
            self.batch.leave(slot)
            self._sequences[slot], self._occupant[slot], sequence.slot = None, 0, -1
            heappush(self._free, slot)
            self._used -= 1

    def leave_all(self) -> None:
        for sequence in self._sequences:
            if sequence is not None:
                self.leave(sequence)

    def drop_rounds(self) -> None:
        """Forgets the rounds in flight and empties all slots, after a round failed as a whole. The sequences continue
        in ordinary forwards."""
        self.leave_all()
        self._queued.clear()
        self.batch.discard_rounds()
        self._pause = PAUSE_STEPS

    def grow_pages(self) -> None:
        """Gives every slot the pages that the rounds in flight may write. Without pages, a sequence leaves."""
        short = np.flatnonzero((self._occupant > 0) & (self._length + ROUNDS_AHEAD > self._held))
        for slot in short.tolist():
            sequence = self._sequences[slot]
            assert sequence is not None
            first = len(sequence.pages)
            if not self._hold_pages(sequence):
                self.leave(sequence)
                continue
            self.batch.extend_pages(slot, first, sequence.pages[first:])
            self._held[slot] = len(sequence.pages) * self._page_size

    def launch(self) -> None:
        """Queues rounds until `ROUNDS_AHEAD` are in flight, or until those in flight complete all answers."""
        longest = int(self._room.max(where=self._occupant > 0, initial=0))
        while len(self._queued) < min(ROUNDS_AHEAD, longest):
            num_slots = self._num_slots
            self._queued.append(self._occupant[:num_slots].copy())
            self.batch.launch(num_slots)

    def commit(self) -> RoundCommit:
        """Reads the oldest round and adds its tokens to their sequences."""
        occupants = self._queued.popleft()
        result = self.batch.wait()
        live = np.flatnonzero((occupants == self._occupant[: len(occupants)]) & (occupants > 0))
        is_finite = result.is_finite[live]
        failed = [sequence for slot in live[~is_finite].tolist() if (sequence := self._sequences[slot]) is not None]
        live = live[is_finite]
        return self._add_tokens(result, live, failed)

    def _add_tokens(self, result: RoundTokens, live: npt.NDArray[np.int64], failed: list[Sequence]) -> RoundCommit:
        token_ids, counts, room = result.token_ids[live], result.counts[live], self._room[live]
        is_stop = (token_ids[:, :, None] == self._stop_ids[live][:, None, :]).any(-1)
        is_stop &= np.arange(token_ids.shape[1]) < counts[:, None]
        first_stop = np.where(is_stop.any(1), is_stop.argmax(1), token_ids.shape[1] + 1)
        # The rules of `diffusion.decoder.truncate`: a stop token directly after the last allowed token still counts.
        is_stopped = first_stop <= np.minimum(room, counts)
        is_full = ~is_stopped & (counts >= room)
        kept = np.minimum(np.where(is_stopped, first_stop, counts), room)
        self._length[live] += kept
        self._room[live] -= kept
        rows, ends = token_ids.tolist(), kept.tolist()
        deltas = []
        finishes = (None, FinishReason.STOP, FinishReason.LENGTH)
        for slot, row, end, state in zip(live.tolist(), rows, ends, (is_stopped + 2 * is_full).tolist(), strict=True):
            sequence = self._sequences[slot]
            assert sequence is not None
            new = row[:end]
            sequence.tokens += new
            sequence.kv_len += end
            sequence.forwards += 1
            sequence.rows += 1
            deltas.append(
                Delta(sequence.request.id, tuple(new), finish=finishes[state], usage=sequence.usage(is_last=state > 0))
            )
        return RoundCommit(deltas, failed, len(live), int(kept.sum()))

    @property
    def _num_slots(self) -> int:
        """One past the highest occupied slot."""
        return int(np.flatnonzero(self._occupant)[-1]) + 1

    def _join(self, sequence: Sequence, slot: int) -> None:
        self._num_joined += 1
        self._used += 1
        self._sequences[slot], self._occupant[slot], sequence.slot = sequence, self._num_joined, slot
        self._length[slot], self._room[slot] = len(sequence.tokens), sequence.room
        self._held[slot] = len(sequence.pages) * self._page_size
        stop_ids = sequence.request.params.stop_ids
        self._stop_ids[slot, : len(stop_ids)] = stop_ids
        self._stop_ids[slot, len(stop_ids) :] = -1
        self.batch.join(slot, sequence)

    def _hold_pages(self, sequence: Sequence) -> bool:
        """Whether the sequence holds the pages of `ROUNDS_AHEAD` rounds; allocates `PAGES_AT_ONCE` more if it can."""
        needed = -(-(len(sequence.tokens) + ROUNDS_AHEAD) // self._page_size) - len(sequence.pages)
        if needed <= 0:
            return True
        pages = self._pool.allocate(needed + PAGES_AT_ONCE) or self._pool.allocate(needed)
        if pages is None:
            return False
        sequence.pages += pages
        return True

    def _compact(self) -> None:
        """Moves sequences from the upper half of the slots into free lower ones, if a graph of half the size holds all
        of them. A moved sequence repeats the rounds in flight."""
        if not self._used:
            return
        half = max(SMALLEST_GRAPH, 1 << (self._num_slots - 1).bit_length()) // 2
        if half < SMALLEST_GRAPH or self._used > SHRINK_SHARE * half:
            return
        moved = [one for one in self._sequences[half:] if one is not None]
        for sequence in moved:
            self.leave(sequence)
        for sequence in moved:
            self._join(sequence, heappop(self._free))
