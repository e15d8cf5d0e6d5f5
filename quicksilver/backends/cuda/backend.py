"""The CUDA backend: verify rounds that are queued ahead of the host, and one graph replay per forward for other work.

While every sequence of the batch uses `verify`, the device runs some rounds ahead of the host. `run` compares the work
that the engine passes with the work that the device assumed. If they are equal, `run` returns the result of the oldest
round in flight. Otherwise (after a stop, a new sequence or an abort) it discards the rounds in flight. These rounds
wrote KV only after the committed tokens, and the next forward overwrites it. Dialects with blocks have rounds of their
own (`block_rounds.py`), and many plain requests decode in the persistent batch (`persistent_batch.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import product

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.cuda.adapter_table import AdapterTable
from quicksilver.backends.cuda.block_rounds import BlockRounds
from quicksilver.backends.cuda.buffers import read_proposal
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import InFlightRounds, RoundShape
from quicksilver.backends.cuda.logit_bias import ADAPTER_OPTIONS, UNMASKED_OPTIONS, fits_rounds
from quicksilver.backends.cuda.persistent_batch import CudaPersistentBatch
from quicksilver.backends.cuda.rounds import RoundGraph
from quicksilver.backends.progress import counted
from quicksilver.backends.round_cost import RoundCost, TimedRound
from quicksilver.model.lowrank import Adapter
from quicksilver.model.row_adapters import RowAdapter

# Maximum number of rounds in flight when the host starts to wait. Two are enough (one runs, one is queued), except for
# rounds of a single token. Rounds in flight when a request ends are wasted, and the next request waits for them.
CANVAS_ROUNDS_AHEAD, SINGLE_TOKEN_ROUNDS_AHEAD = 2, 3


class CudaBackend:
    round_cost: RoundCost | None = None

    def __init__(self, executor: GraphExecutor) -> None:
        self.executor, self.model, self.cache = executor, executor.model, executor.cache
        self.device = executor.device
        self.persistent: CudaPersistentBatch | None = None
        self.rounds: dict[RoundShape, RoundGraph] = {}
        self.blocks: BlockRounds | None = None
        self._in_flight: InFlightRounds | None = None
        self._graph: RoundGraph | None = None  # of the rounds in flight

    def prepare_rounds(self, shapes: Seq[RoundShape]) -> None:
        """Capture these rounds; a batch that fits none of them runs forward by forward."""
        options = [(one, False) for one in UNMASKED_OPTIONS] + [(ADAPTER_OPTIONS, True)] * self.supports_adapters
        variants = list(product(shapes, options, (False, True)))
        for shape, (one, has_adapters), has_draft in counted("preparing rounds", variants):
            if shape not in self.rounds:
                self.rounds[shape] = RoundGraph(self.executor, shape)
            self.rounds[shape].prepare(one, has_draft, has_adapters)

    def prepare_blocks(self, max_sequences: int) -> None:
        """Capture the rounds of a dialect with blocks."""
        self.blocks = BlockRounds(self.executor, max_sequences)
        self.blocks.prepare()

    def prepare_slots(self, num_slots: int) -> None:
        """Capture the rounds of a persistent batch of this many slots."""
        self.persistent = CudaPersistentBatch(self.executor, num_slots)
        self.persistent.prepare()
        self.executor.before_wait = self._queue_rounds

    def _queue_rounds(self) -> None:
        if self.persistent is not None:
            self.persistent.before_wait()

    def measure(self) -> None:
        """Time the captured graphs, so that the scheduler can choose canvas lengths. Call it before the first
        request."""
        rounds = tuple(
            TimedRound(shape.num_sequences, shape.canvas_len, graph.time(), shape.tree_rows)
            for shape, graph in self.rounds.items()
        )
        slots = self.persistent.measure() if self.persistent is not None else ()
        self.round_cost = RoundCost(self.executor.forward_ms(), rounds, slots)

    @property
    def supports_adapters(self) -> bool:
        return self.executor.supports_adapters

    @property
    def adapter_store(self) -> AdapterTable | None:
        return self.executor.adapter_store

    def convert_adapter(self, adapter: Adapter) -> RowAdapter:
        return self.executor.convert_adapter(adapter)

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        """One forward, from the rounds in flight if they match; the contract of `Backend.run`."""
        if self.blocks is not None:
            outcomes = self.blocks.run(works)
            return self.executor.run(works) if outcomes is None else outcomes
        if self._in_flight is not None and not (self._in_flight.expects(works) and self._launch_ahead()):
            self._discard()
        if self._in_flight is None:
            self._start_rounds(works)
        if self._in_flight is None:
            return self.executor.run(works)
        return self._deliver(self._in_flight, works)

    def _start_rounds(self, works: Seq[Work]) -> None:
        fitting = [shape for shape in self.rounds if shape.accepts(works)]
        if not fitting or not all(fits_rounds(work) for work in works):
            return
        shape = min(fitting, key=lambda s: (s.num_sequences, s.canvas_len, -s.tree_rows))
        in_flight, graph = InFlightRounds.start(shape, works), self.rounds[shape]
        if self._has_pages(in_flight):
            graph.load(works, in_flight.options)
            self._in_flight, self._graph = in_flight, graph
            self._launch_ahead()

    def _deliver(self, in_flight: InFlightRounds, works: Seq[Work]) -> list[Outcome | None]:
        """The forward of a round that `works` ask for."""
        if in_flight.arrived is None:
            in_flight.arrived, wait = in_flight.queued.popleft()
            wait()
        outcomes = in_flight.deliver(works, read_proposal(in_flight.arrived[in_flight.half]))
        if in_flight.half == 0:
            in_flight.arrived = None
        return list(outcomes)

    def _launch_ahead(self) -> bool:
        """Queue rounds up to the depth. False if no round is queued because pages are missing."""
        in_flight, graph = self._in_flight, self._graph
        assert in_flight is not None
        assert graph is not None
        if in_flight.arrived is not None:
            # The verify half has arrived and another round is running. This half may end the answer, so launching now
            # could waste a round.
            return True
        depth = SINGLE_TOKEN_ROUNDS_AHEAD if in_flight.shape.canvas_len == 1 else CANVAS_ROUNDS_AHEAD
        while len(in_flight.queued) < depth and not in_flight.covers_remaining() and self._has_pages(in_flight):
            graph.send_pages(in_flight)
            has_draft = not in_flight.queued and in_flight.half == 1
            in_flight.queued.append(graph.launch(in_flight.options, has_draft, in_flight.has_adapters))
        return bool(in_flight.queued)

    def _has_pages(self, in_flight: InFlightRounds) -> bool:
        return in_flight.has_pages(self.cache.page_size, self.executor.pages.shape[1])

    def _discard(self) -> None:
        """Drop the rounds in flight. They still run, before anything that is queued later, so nothing waits."""
        assert self._graph is not None
        self._graph.clear()
        self._in_flight = self._graph = None
