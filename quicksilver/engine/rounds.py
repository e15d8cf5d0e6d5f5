"""Verify rounds that run ahead of the host: draft, verify, acceptance and the next round's rows in one CUDA graph.

A round is two forwards, or one: then every verify row is followed by the masks that would draft behind it, and
acceptance picks the set that becomes the next draft. One forward gives a token less a round for half the time.

`RoundRunner` answers the same `run(works)` as any Runner. While requests do nothing but verify, the device is already a
few rounds on; each `run` looks whether the engine asks for exactly what the device assumed, and hands over the result.
If the engine asks for anything else (a stop, a newcomer, an abort) what ran ahead is dropped: it wrote only KV behind
the committed text, which the next forward overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from quicksilver.diffusion.recall import WINDOW
from quicksilver.diffusion.sample import Proposal
from quicksilver.engine.flight import Flight, RoundShape, one_forward
from quicksilver.engine.graphs import (
    SMALLEST,
    GraphLimits,
    GraphRunner,
    HeadBuffers,
    Mark,
    RowBuffers,
    bucket_of,
    capture,
    is_plain,
    time_replay,
)
from quicksilver.engine.pace import Pace, TimedRound
from quicksilver.engine.runner import Outcome
from quicksilver.engine.sequence import Work
from quicksilver.engine.transition import (
    RoundState,
    take_chosen,
    take_draft,
    take_verified,
    write_rows,
    write_sets,
)
from quicksilver.model.attention import PagedCache
from quicksilver.model.kernels.attention import cut_tiles
from quicksilver.model.kernels.head import HeadRows, propose_rows, read_results
from quicksilver.model.transformer import Transformer

__all__ = ["RoundGraph", "RoundRunner", "RoundShape", "one_forward"]

DEPTH, SHORT_DEPTH = 2, 3
"""Rounds the device may be ahead of what the host has read: one runs and one waits, which is enough unless a round is a
single token. What is ahead when a request ends is wasted, and the next request waits for it."""
USUAL_CONTEXT = 512
"""Cached tokens behind which rounds are timed."""


class RoundGraph:
    """Buffers and graphs of one shape. `launch` queues a round and returns where its proposals will be."""

    def __init__(self, runner: RoundRunner, shape: RoundShape) -> None:
        self.runner, self.shape = runner, shape
        device, network, num_heads = runner.device, runner.network, bucket_of(shape.num_proposals)
        # Sets begin at a whole tile where tiles choose their weights, so that no tile has to read both kinds.
        align = network.set_align(num_heads) if shape.num_sets else 1
        self.first_set = -(-shape.num_verify // align) * align
        self.num_rows = self.first_set + shape.num_proposals - shape.num_verify
        align = max(align, SMALLEST)
        self.num_rows = -(-self.num_rows // align) * align if network.is_whole(num_heads) else bucket_of(self.num_rows)
        tiles = self._tiles(network.shape(self.num_rows).tile_rows)
        self.host_pages = torch.full((shape.num_sequences, runner.pages.shape[1]), -1, dtype=torch.int32)
        self.host_pages = self.host_pages.pin_memory() if device.type == "cuda" else self.host_pages
        pages = (self.host_pages, self.host_pages.to(device, copy=True))
        self.rows = RowBuffers(self.num_rows, len(tiles), pages, runner.cache.page_size)
        self.rows.inputs.tables.tiles.copy_(torch.tensor(tiles, dtype=torch.int32))
        self.rows.device[3].fill_(-1)
        self.rows.device[7, self.first_set :].fill_(1 if shape.num_sets else 0)
        self.space = network.space(self.num_rows)
        self.head = HeadBuffers(num_heads, network.weights.head.w, network.input_dtype)
        self.head.ints[0, : shape.num_verify] = torch.arange(shape.num_verify)
        sets = torch.arange(shape.num_proposals - shape.num_verify) + self.first_set
        self.head.ints[0, shape.num_verify : shape.num_proposals] = sets
        context_len = runner.pages.shape[1] * runner.cache.page_size
        self.state = RoundState.allocate(shape.num_sequences, shape.canvas_len, context_len, device)
        self.host_state = self.state.on_host()
        self.sent = Mark(device)
        self.results = torch.zeros(1 if shape.num_sets else 2, 4, num_heads, dtype=torch.int32, device=device)
        self._replays: dict[tuple[bool, bool], Callable[[], None]] = {}

    def _tiles(self, tile_rows: int) -> list[tuple[int, int, int]]:
        """Runs of rows of one sequence: its verify rows and, elsewhere, its sets."""
        shape, masks = self.shape, self.shape.num_sets * (self.shape.canvas_len - 1)
        segments = [(b * shape.canvas_len, (b + 1) * shape.canvas_len) for b in range(shape.num_sequences)]
        starts = [self.first_set + b * masks for b in range(shape.num_sequences)]
        sets = [(start, start + masks) for start in starts]
        return cut_tiles(segments, tile_rows) + cut_tiles(sets, tile_rows)

    def launch(self, is_drawn: bool, has_draft: bool = False) -> tuple[Tensor, Callable[[], None]]:
        """Where a round is two forwards and its sequences have drafts, only the second runs."""
        self.prepare(is_drawn, has_draft)()
        host = torch.empty_like(self.results, device="cpu", pin_memory=self.results.is_cuda)
        host.copy_(self.results, non_blocking=True)
        if not self.results.is_cuda:
            return host, lambda: None
        done = torch.cuda.Event()
        done.record()
        return host, done.synchronize

    def prepare(self, is_drawn: bool, has_draft: bool = False) -> Callable[[], None]:
        key = (is_drawn, has_draft and self.shape.has_halves)
        if key not in self._replays:
            assert bool((self.state.position < 0).all()), "a round graph is captured while it holds no sequence"
            self._replays[key] = capture(lambda: self._round(*key), self.runner.device, self.runner.pool)
        return self._replays[key]

    def time(self) -> float:
        """Milliseconds of a round behind a context of the usual length, or of what the cache has room for. Writes into
        the first pages."""
        pages, page_size = self.rows.inputs.tables.pages, self.runner.cache.page_size
        num_pages = min(pages.shape[1], self.runner.cache.k.shape[1] // page_size)
        pages.copy_(torch.arange(pages.shape[1]).clamp(max=num_pages - 1)[None])
        self.state.last.fill_(0)
        self.state.position.fill_(max(min(USUAL_CONTEXT, num_pages * page_size - 8 * (self.shape.canvas_len + 1)), -1))
        ms = time_replay(self.prepare(is_drawn=False))
        self.state.cells.fill_(-1)
        pages.fill_(-1)
        return ms

    def _round(self, is_drawn: bool, has_draft: bool) -> None:
        if self.shape.num_sets:
            self._forward_with_sets(is_drawn)
            return
        if not has_draft:
            self._forward(0, is_drawn)
            take_draft(self.state, self.results[0])
        if self.shape.has_halves:
            self._forward(1, is_drawn)
            take_verified(self.state, self.results[1, 0])

    def _forward(self, half: int, is_drawn: bool) -> None:
        tables = self.rows.inputs.tables
        write_rows(self.state, self.rows.device, self.head.ints[1], tables.pages, tables.page_size, half == 0)
        is_gated = half == 0 and self.shape.canvas_len > 1
        self._propose(self.runner.network.run(self.rows.inputs, self.space, is_gated), half, is_drawn)

    def _forward_with_sets(self, is_drawn: bool) -> None:
        tables, columns, noise_at = self.rows.inputs.tables, self.rows.device, self.head.ints[1]
        write_rows(self.state, columns, noise_at, tables.pages, tables.page_size, False)
        last_position = len(self.runner.network.angles) - 1
        write_sets(self.state, columns, noise_at, (self.first_set, self.shape.num_verify), last_position)
        self._propose(self.runner.network.run(self.rows.inputs, self.space, is_gated=True), 0, is_drawn)
        take_chosen(self.state, self.results[0])

    def _propose(self, x: Tensor, half: int, is_drawn: bool) -> None:
        weights = self.runner.network.weights
        rows = HeadRows(self.head.ints[0], self.head.draws if is_drawn else None)
        propose_rows(x, weights.norm, weights.head, rows, self.head.space.with_results(self.results[half]))


class RoundRunner(GraphRunner):
    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int, limits: GraphLimits) -> None:
        super().__init__(model, cache, logit_rows, limits)
        self._graphs: dict[RoundShape, RoundGraph] = {}
        self._flight: Flight | None = None

    def prepare_rounds(self, shapes: Seq[RoundShape]) -> None:
        """Capture these rounds; a batch that fits none of them runs forward by forward."""
        for shape in shapes:
            self._graphs[shape] = RoundGraph(self, shape)
            for is_drawn in (False, True):
                for has_draft in (False, True):
                    self._graphs[shape].prepare(is_drawn, has_draft)

    def measure(self) -> None:
        """Time what was prepared, so that canvases can be as long as pays here. Before the first request."""
        rounds = tuple(
            TimedRound(shape.num_sequences, shape.canvas_len, shape.num_sets > 0, graph.time())
            for shape, graph in self._graphs.items()
        )
        self.pace = Pace(self.forward_ms(), rounds)

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        if self._flight is not None and not (self._flight.expects(works) and self._launch_ahead()):
            self._drop()
        if self._flight is None:
            self._take_off(works)
        if self._flight is None:
            return super().run(works)
        return self._land(self._flight, works)

    def _take_off(self, works: Seq[Work]) -> None:
        fitting = [shape for shape in self._graphs if shape.takes(works)]
        if not fitting or not all(is_plain(work) for work in works):
            return
        shape = min(fitting, key=lambda shape: (shape.num_sequences, shape.canvas_len, -shape.num_sets))
        flight, graph = Flight.of(shape, works), self._graphs[shape]
        if self._has_pages(flight):
            _load(graph, works, flight.is_drawn)
            self._flight = flight
            self._launch_ahead()

    def _land(self, flight: Flight, works: Seq[Work]) -> list[Outcome | None]:
        """The half of a round that `works` asks for, or the whole of it where it is one forward."""
        if flight.landed is None:
            flight.landed, wait = flight.rounds.popleft()
            wait()
        outcomes = flight.take(works, Proposal(*read_results(flight.landed[flight.half])))
        if flight.half == 0:
            flight.landed = None
        return list(outcomes)

    def _launch_ahead(self) -> bool:
        """Keep the device busy before waiting for it; False when there is nothing to wait for, for want of pages."""
        flight = self._flight
        assert flight is not None
        graph = self._graphs[flight.shape]
        depth = SHORT_DEPTH if flight.shape.canvas_len == 1 else DEPTH
        while len(flight.rounds) < depth and not flight.is_enough() and self._has_pages(flight):
            _send_pages(graph, flight)
            is_first = not flight.rounds and flight.landed is None
            flight.rounds.append(graph.launch(flight.is_drawn, has_draft=is_first and flight.half == 1))
        return flight.landed is not None or bool(flight.rounds)

    def _has_pages(self, flight: Flight) -> bool:
        return flight.has_pages(self.cache.page_size, self.pages.shape[1])

    def _drop(self) -> None:
        """Forget what ran ahead. It still runs, before anything that is queued from now on; so nothing waits for it."""
        assert self._flight is not None
        self._graphs[self._flight.shape].state.position.fill_(-1)
        self._flight = None


def _load(graph: RoundGraph, works: Seq[Work], is_drawn: bool) -> None:
    """The sequences' state onto the device; the only time the host writes it. Waits only for copies of its buffers."""
    graph.sent.wait()
    host, head = graph.host_state, graph.head
    host.cells.fill_(-1)
    for b, work in enumerate(works):
        params, draft = work.sequence.request.params, work.tail.token_ids if work.tail and work.tail.is_causal else ()
        host.last[b], host.position[b] = work.sequence.tokens[work.end - 1], work.end - 1
        host.draft[b, : len(draft)] = torch.tensor(draft, dtype=torch.int32)
        near = slice(max(work.end - WINDOW, 0), work.end)
        host.text[b, near] = torch.tensor(work.sequence.tokens[near], dtype=torch.int32)
        graph.state.text[b, near].copy_(host.text[b, near], non_blocking=True)
        for rows in graph.shape.proposals_of(b):
            head.host_seeds[rows], head.host_heat[rows] = params.seed, params.temperature
    graph.state.cells.copy_(host.cells, non_blocking=True)
    if is_drawn:
        head.seeds.copy_(head.host_seeds, non_blocking=True)
        head.heat.copy_(head.host_heat, non_blocking=True)
    graph.host_pages.fill_(-1)
    graph.sent.mark()


def _send_pages(graph: RoundGraph, flight: Flight) -> None:
    """Page tables only grow in flight, so a copy still under way can only bring entries early."""
    device = graph.rows.inputs.tables.pages
    for sequence, b in flight.index.items():
        count = min(len(sequence.pages), device.shape[1])
        if int(graph.host_pages[b, count - 1]) != sequence.pages[count - 1]:
            graph.host_pages[b, :count] = torch.tensor(sequence.pages[:count], dtype=torch.int32)
            device[b, :count].copy_(graph.host_pages[b, :count], non_blocking=True)
            graph.sent.mark()
