"""Verify rounds that run ahead of the host: draft, verify, acceptance and the next round's rows in one CUDA graph.

A round is two forwards, or one: then every verify row is followed by the masks that would draft behind it, and
acceptance picks the set that becomes the next draft. One forward gives a token less a round for half the time. Where it
is two, the verify forward may hold a tree of drafts (`trees.py`): more than one token can then be right at a place.

`RoundRunner` answers the same `run(works)` as any backend. While requests only verify, the device is already a
few rounds on; each `run` looks whether the engine asks for exactly what the device assumed, and hands over the result.
If the engine asks for anything else (a stop, a newcomer, an abort) what ran ahead is dropped: it wrote only KV behind
the committed text, which the next forward overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.cuda.capture import capture, time_replay
from quicksilver.backends.cuda.graphs import GraphLimits, GraphRunner, Mark
from quicksilver.backends.cuda.inflight import Flight, RoundShape, one_forward
from quicksilver.backends.cuda.kernels.head import NUM_NEXT, read_results
from quicksilver.backends.cuda.logit_bias import HEAD_KINDS, HeadKind, is_plain
from quicksilver.backends.cuda.round_forward import RoundForward
from quicksilver.backends.cuda.round_kernels import (
    RoundState,
    take_chosen,
    take_draft,
    take_verified,
    write_rows,
    write_sets,
)
from quicksilver.backends.cuda.trees import keep_way, plant, take_proved, write_tree
from quicksilver.backends.round_cost import RoundCost, TimedRound
from quicksilver.diffusion.prompt_lookup import WINDOW
from quicksilver.diffusion.sample import Proposal
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer

__all__ = ["RoundGraph", "RoundRunner", "RoundShape", "one_forward"]

DEPTH, SHORT_DEPTH = 2, 3
"""Rounds the device may be ahead of what the host has read when it begins to wait: one runs and one waits, which is
enough unless a round is a single token. What is ahead when a request ends is wasted, and the next one waits for it."""
USUAL_CONTEXT = 512
"""Cached tokens behind which rounds are timed."""


class RoundGraph:
    """Buffers and graphs of one shape. `launch` queues a round and returns where its proposals will be."""

    def __init__(self, runner: RoundRunner, shape: RoundShape) -> None:
        self.runner, self.shape, device = runner, shape, runner.device
        max_pages = runner.pages.shape[1]
        self.state = RoundState.allocate(shape, max_pages * runner.cache.page_size, device, max_pages)
        self.host_state = self.state.on_host(shape)
        self.host_arrays = self.host_state.arrays()
        # By sequence: where its text goes, and where it comes from.
        self.texts = list(zip(self.state.text, self.host_state.text, strict=True))
        self.pages, tables = self.state.pages, (self.host_state.pages, self.state.pages)
        verify = RoundForward(runner, shape, tables)
        # By half. Only a tree makes them differ.
        self.forwards = [verify] if shape.num_sets else [verify, verify]
        self.runners_up = self.raw = torch.zeros(0, dtype=torch.int32, device=device)
        if shape.tree_rows:
            assert runner.cache.num_scratch >= shape.num_verify, "a tree's rows write to scratch slots"
            self.forwards = [RoundForward(runner, shape.draft, tables), verify]
            self.runners_up = self.runners_up.new_zeros(2 * NUM_NEXT, self.forwards[0].num_heads)
            self.raw = self.raw.new_zeros(4, verify.num_heads)
        self.sent = Mark(device)
        self._flat = torch.zeros(4 * len(self.forwards) * self.forwards[0].num_heads, dtype=torch.int32, device=device)
        self.results = self._by_half(self._flat)
        self._replays: dict[tuple[HeadKind, bool], Callable[[], None]] = {}

    @property
    def num_rows(self) -> int:
        """Of the forward that verifies."""
        return self.forwards[-1].num_rows

    def _by_half(self, flat: Tensor) -> list[Tensor]:
        return list(flat.view(len(self.forwards), 4, -1))

    def launch(self, kind: HeadKind, has_draft: bool = False) -> tuple[list[Tensor], Callable[[], None]]:
        """Where a round is two forwards and its sequences have drafts, only the second runs."""
        self.prepare(kind, has_draft)()
        host = torch.empty_like(self._flat, device="cpu", pin_memory=self._flat.is_cuda)
        host.copy_(self._flat, non_blocking=True)
        if not self._flat.is_cuda:
            return self._by_half(host), lambda: None
        done = torch.cuda.Event()
        done.record()
        return self._by_half(host), done.synchronize

    def prepare(self, kind: HeadKind, has_draft: bool = False) -> Callable[[], None]:
        key = (kind, has_draft and self.shape.has_halves)
        if key not in self._replays:
            assert bool((self.state.position < 0).all()), "a round graph is captured while it holds no sequence"
            self._replays[key] = capture(lambda: self._round(*key), self.runner.device, self.runner.pool)
        return self._replays[key]

    def time(self) -> float:
        """Milliseconds of a round behind a context of the usual length, or of what the cache has room for. Writes into
        the first pages."""
        pages, page_size = self.pages, self.runner.cache.page_size
        num_pages = min(pages.shape[1], self.runner.cache.num_paged // page_size)
        pages.copy_(torch.arange(pages.shape[1]).clamp(max=num_pages - 1)[None])
        self.state.last.fill_(0)
        self.state.position.fill_(max(min(USUAL_CONTEXT, num_pages * page_size - 8 * (self.shape.canvas_len + 1)), -1))
        ms = time_replay(self.prepare(HeadKind()))
        self.state.cells.fill_(-1)
        return ms

    def _round(self, kind: HeadKind, has_draft: bool) -> None:
        if self.shape.num_sets:
            self._forward_with_sets(kind)
            return
        has_tree = self.shape.tree_rows > 0
        if not has_draft:
            self._write_rows(self.forwards[0], is_draft=True)
            runners_up = self.runners_up if has_tree else None
            self.forwards[0].run(self.shape.canvas_len > 1, kind, self.results[0], runners_up)
            take_draft(self.state, self.results[0], runners_up)
        if has_tree:
            self._verify_tree(kind, grows=not has_draft)
        elif self.shape.has_halves:
            self._write_rows(self.forwards[1], is_draft=False)
            self.forwards[1].run(False, kind, self.results[1])
            take_verified(self.state, self.results[1])

    def _verify_tree(self, kind: HeadKind, grows: bool) -> None:
        forward, cache = self.forwards[1], self.runner.cache
        tables = forward.rows.inputs.tables
        write_tree(self.state, forward.rows.device, forward.head.ints[1], tables, cache.num_paged, grows)
        forward.run(False, kind, self.raw)
        take_proved(self.state, self.raw, self.results[1], self.results[0][0])
        keep_way(self.state, tables, cache)

    def _forward_with_sets(self, kind: HeadKind) -> None:
        forward = self.forwards[0]
        self._write_rows(forward, is_draft=False)
        last_position, first = len(self.runner.network.angles) - 1, (forward.first_beside, self.shape.num_verify)
        write_sets(self.state, forward.rows.device, forward.head.ints[1], first, last_position)
        forward.run(True, kind, self.results[0])
        take_chosen(self.state, self.results[0])

    def _write_rows(self, forward: RoundForward, is_draft: bool) -> None:
        page_size = self.runner.cache.page_size
        write_rows(self.state, forward.rows.device, forward.head.ints[1], self.pages, page_size, is_draft)


class RoundRunner(GraphRunner):
    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int, limits: GraphLimits) -> None:
        super().__init__(model, cache, logit_rows, limits)
        self._graphs: dict[RoundShape, RoundGraph] = {}
        self._flight: Flight | None = None
        self._flown: RoundGraph | None = None  # the graph of the flight

    def prepare_rounds(self, shapes: Seq[RoundShape]) -> None:
        """Capture these rounds; a batch that fits none of them runs forward by forward."""
        for shape in shapes:
            self._graphs[shape] = RoundGraph(self, shape)
            for kind in HEAD_KINDS:
                for has_draft in (False, True):
                    self._graphs[shape].prepare(kind, has_draft)

    def measure(self) -> None:
        """Time what was prepared, so that canvases can be as long as pays here. Before the first request."""
        rounds = tuple(
            TimedRound(shape.num_sequences, shape.canvas_len, shape.num_sets > 0, graph.time(), shape.tree_rows)
            for shape, graph in self._graphs.items()
        )
        self.round_cost = RoundCost(self.forward_ms(), rounds)

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
        shape = min(fitting, key=lambda s: (s.num_sequences, s.canvas_len, -s.num_sets, -s.tree_rows))
        flight, graph = Flight.of(shape, works), self._graphs[shape]
        if self._has_pages(flight):
            _load(graph, works, flight.kind)
            self._flight, self._flown = flight, graph
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
        flight, graph = self._flight, self._flown
        assert flight is not None
        assert graph is not None
        if flight.landed is not None:
            # Nothing to wait for, and a round is under way. This half may end the answer: then one less was in vain.
            return True
        depth = SHORT_DEPTH if flight.shape.canvas_len == 1 else DEPTH
        while len(flight.rounds) < depth and not flight.is_enough() and self._has_pages(flight):
            _send_pages(graph, flight)
            flight.rounds.append(graph.launch(flight.kind, has_draft=not flight.rounds and flight.half == 1))
        return bool(flight.rounds)

    def _has_pages(self, flight: Flight) -> bool:
        return flight.has_pages(self.cache.page_size, self.pages.shape[1])

    def _drop(self) -> None:
        """Forget what ran ahead. It still runs, before anything that is queued from now on; so nothing waits for it."""
        assert self._flown is not None
        self._flown.state.position.fill_(-1)
        self._flight = self._flown = None


def _load(graph: RoundGraph, works: Seq[Work], kind: HeadKind) -> None:
    """The sequences' state onto the device; the only time the host writes it. Waits only for copies of its buffers."""
    graph.sent.wait()
    host, forwards = graph.host_arrays, dict.fromkeys(graph.forwards)
    host.cells[:] = -1
    for b, work in enumerate(works):
        tokens, draft = work.sequence.tokens, work.tail.token_ids if work.tail and work.tail.is_causal else ()
        host.last[b], host.position[b] = tokens[work.end - 1], work.end - 1
        host.draft[b, : len(draft)] = draft
        if graph.shape.tree_rows:
            plant(host.tree[b], [tokens[work.end - 1], *draft])
        pages = work.sequence.pages[: host.pages.shape[1]]
        host.pages[b, : len(pages)] = pages
        near = slice(max(work.end - WINDOW, 0), work.end)
        host.text[b, near] = tokens[near]
        device, pinned = graph.texts[b]
        device[near].copy_(pinned[near], non_blocking=True)
        for forward in forwards:
            forward.write_wishes(b, work.sequence.request.params, kind)
    graph.state.cells.copy_(graph.host_state.cells, non_blocking=True)
    for forward in forwards:
        forward.head.send_wishes(kind)
    graph.sent.mark()


def _send_pages(graph: RoundGraph, flight: Flight) -> None:
    """Page tables only grow in flight, so a copy still under way can only bring entries early."""
    table = graph.host_arrays.pages
    for sequence, b in flight.index.items():
        count = min(len(sequence.pages), table.shape[1])
        if table[b, count - 1] != sequence.pages[count - 1]:
            table[b, :count] = sequence.pages[:count]
            graph.pages[b, :count].copy_(graph.host_state.pages[b, :count], non_blocking=True)
            graph.sent.mark()
