"""A PersistentBatch without a device: every round is an ordinary forward of another backend over copies of the
sequences. Results are read as late as those of a device, and the copies do not see what the engine does meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from quicksilver.backends.base import Backend, RoundTokens, Sequence, Work
from quicksilver.core import DecoderName, DecoderParams
from quicksilver.diffusion.decoder import Canvas, Tail
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.decode_slots import DecodeSlots
from quicksilver.engine.engine import Engine


class HostRounds:
    def __init__(self, backend: Backend, num_slots: int = 32) -> None:
        self.before_wait: Callable[[], None] = lambda: None
        self.num_slots = num_slots
        self._backend = backend
        self._copies: dict[int, Sequence] = {}
        self._queued: deque[RoundTokens] = deque()
        self.num_launched = 0
        self.fails = False

    def accepts(self, sequence: Sequence) -> bool:
        return sequence.request.params.logprobs is None

    def join(self, slot: int, sequence: Sequence) -> None:
        assert slot not in self._copies, "the slot is occupied"
        decoder = make_decoder(DecoderParams(DecoderName.AR, canvas_len=1))
        copy = Sequence(sequence.request, decoder, tokens=list(sequence.tokens))
        copy.kv_len, copy.pages = sequence.kv_len, list(sequence.pages)
        self._copies[slot] = copy

    def leave(self, slot: int) -> None:
        del self._copies[slot]

    def extend_pages(self, slot: int, first: int, pages: list[int]) -> None:
        copy = self._copies[slot]
        assert first == len(copy.pages)
        copy.pages = copy.pages + pages

    def launch(self, num_slots: int) -> None:
        if self.fails:
            raise RuntimeError("no device")
        assert max(self._copies) < num_slots, "an occupied slot is outside the round"
        works, self.num_launched = [], self.num_launched + 1
        for copy in self._copies.values():
            copy.canvas = Canvas.blank(1)
            assert len(copy.pages) * 16 >= len(copy.tokens), "the round writes outside of the pages"
            works.append(Work(copy, len(copy.tokens) - 1, len(copy.tokens), Tail()))
        token_ids, is_finite = np.zeros((num_slots, 1), np.int32), np.zeros(num_slots, np.bool_)
        for slot, copy, outcome in zip(self._copies, self._copies.values(), self._backend.run(works), strict=True):
            assert outcome is not None
            token_ids[slot, 0], is_finite[slot] = int(outcome.proposal.token_ids[0]), outcome.proposal.is_finite.all()
            copy.tokens.append(int(token_ids[slot, 0]))
            copy.kv_len += 1
        self._queued.append(RoundTokens(token_ids, np.ones(num_slots, np.int64), is_finite))

    def wait(self) -> RoundTokens:
        return self._queued.popleft()

    def discard_rounds(self) -> None:
        self._queued.clear()


def with_host_rounds(engine: Engine, num_slots: int = 32) -> HostRounds:
    """Lets the engine decode in slots."""
    rounds = HostRounds(engine.backend, num_slots)
    slots = DecodeSlots(rounds, engine.pool, engine.config.page_size)
    rounds.before_wait = engine._launch_rounds
    engine.slots = engine.scheduler.slots = slots
    return rounds
