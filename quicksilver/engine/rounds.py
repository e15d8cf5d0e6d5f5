"""Verify rounds that run ahead of the host: draft, verify, acceptance and the next round's rows in one CUDA graph.

A round is two forwards, or one: then every verify row is followed by the masks that would draft behind it, and
acceptance picks the set that becomes the next draft. One forward gives a token less a round for half the time.

`RoundRunner` answers the same `run(works)` as any Runner. While requests do nothing but verify, the device is already a
few rounds on; each `run` looks whether the engine asks for exactly what the device assumed, and hands over the result.
If the engine asks for anything else (a stop, a newcomer, an abort) what ran ahead is dropped: it wrote only KV behind
the committed text, which the next forward overwrites.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quicksilver.core import DecoderName
from quicksilver.diffusion.sample import Proposal
from quicksilver.engine.graphs import (
    SMALLEST,
    GraphLimits,
    GraphRunner,
    HeadBuffers,
    RowBuffers,
    bucket_of,
    capture,
    is_plain,
    time_replay,
)
from quicksilver.engine.pace import Pace, TimedRound
from quicksilver.engine.runner import Outcome
from quicksilver.engine.sequence import Sequence, Work
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

DEPTH, SHORT_DEPTH = 2, 3
"""Rounds the device may be ahead of what the host has read: one runs and one waits, which is enough unless a round is a
single token. What is ahead when a request ends is wasted, and the next request waits for it."""


@dataclass(frozen=True, slots=True)
class RoundShape:
    """A round graph: so many sequences with canvases of so many tokens. A canvas of one is plain autoregression, a
    round of one forward."""

    num_sequences: int
    canvas_len: int
    num_sets: int = 0
    """Draft sets that ride in the verify forward, one for every acceptance; 0 drafts in a forward of its own."""

    @property
    def num_verify(self) -> int:
        return self.num_sequences * self.canvas_len

    @property
    def num_proposals(self) -> int:
        return self.num_verify + self.num_sequences * self.num_sets * (self.canvas_len - 1)


def one_forward(num_sequences: int, canvas_len: int) -> RoundShape:
    return RoundShape(num_sequences, canvas_len, canvas_len)


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
        self.state = RoundState.allocate(shape.num_sequences, shape.canvas_len, device)
        self.results = torch.zeros(1 if shape.num_sets else 2, 4, num_heads, dtype=torch.int32, device=device)
        self._replays: dict[bool, Callable[[], None]] = {}

    def _tiles(self, tile_rows: int) -> list[tuple[int, int, int]]:
        """Runs of rows of one sequence: its verify rows and, elsewhere, its sets."""
        shape, masks = self.shape, self.shape.num_sets * (self.shape.canvas_len - 1)
        segments = [(b * shape.canvas_len, (b + 1) * shape.canvas_len) for b in range(shape.num_sequences)]
        starts = [self.first_set + b * masks for b in range(shape.num_sequences)]
        sets = [(start, start + masks) for start in starts]
        return cut_tiles(segments, tile_rows) + cut_tiles(sets, tile_rows)

    def proposals_of(self, b: int) -> tuple[slice, slice]:
        """Where sequence b's verify rows and its sets are among the proposals."""
        shape = self.shape
        masks = shape.num_sets * (shape.canvas_len - 1)
        first = shape.num_verify + b * masks
        return slice(b * shape.canvas_len, (b + 1) * shape.canvas_len), slice(first, first + masks)

    def launch(self, is_drawn: bool) -> tuple[Tensor, Callable[[], None]]:
        self.prepare(is_drawn)()
        host = torch.empty_like(self.results, device="cpu", pin_memory=self.results.is_cuda)
        host.copy_(self.results, non_blocking=True)
        if not self.results.is_cuda:
            return host, lambda: None
        done = torch.cuda.Event()
        done.record()
        return host, done.synchronize

    def prepare(self, is_drawn: bool) -> Callable[[], None]:
        if is_drawn not in self._replays:
            assert bool((self.state.position < 0).all()), "a round graph is captured while it holds no sequence"
            self._replays[is_drawn] = capture(lambda: self._round(is_drawn), self.runner.device, self.runner.pool)
        return self._replays[is_drawn]

    def _round(self, is_drawn: bool) -> None:
        if self.shape.num_sets:
            self._forward_with_sets(is_drawn)
            return
        self._forward(0, is_drawn)
        take_draft(self.state, self.results[0, 0])
        if self.shape.canvas_len == 1:
            return
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
        take_chosen(self.state, self.results[0, 0])

    def _propose(self, x: Tensor, half: int, is_drawn: bool) -> None:
        weights = self.runner.network.weights
        rows = HeadRows(self.head.ints[0], self.head.draws if is_drawn else None)
        propose_rows(x, weights.norm, weights.head, rows, self.head.space.with_results(self.results[half]))


@dataclass(slots=True)
class Flight:
    """The sequences a round graph is carrying, as the host last saw them, and the rounds it has not read yet."""

    graph: RoundGraph
    index: dict[Sequence, int]
    is_drawn: bool
    ends: list[int]
    """Committed length of each sequence that the next `run` should ask for."""
    drafts: list[tuple[int, ...]]
    """The tokens that the next `run` should ask to verify; empty where it should ask for a draft."""
    rounds: deque[tuple[Tensor, Callable[[], None]]] = field(default_factory=deque)
    landed: Tensor | None = None
    """Results of the round whose verify half has not been asked for."""

    def expects(self, works: Seq[Work]) -> bool:
        return len(works) == len(self.index) and all(self._expects(work) for work in works)

    def _expects(self, work: Work) -> bool:
        b = self.index.get(work.sequence)
        if b is None or work.tail is None or (work.start, work.end) != (self.ends[b] - 1, self.ends[b]):
            return False
        if self.drafts[b]:
            return work.tail.is_causal and work.tail.token_ids == self.drafts[b]
        return is_draft(work) and len(work.tail.token_ids) == self.graph.shape.canvas_len - 1

    def has_pages(self, sequences: Seq[Sequence], page_size: int) -> bool:
        """Whether another round would write into pages that its sequences hold, however much is accepted."""
        canvas_len = self.graph.shape.canvas_len
        longest = canvas_len if self.graph.shape.num_sets else canvas_len + 1
        unread = len(self.rounds) * longest + (canvas_len if self.landed is not None else 0)
        reach = unread + canvas_len
        held = [min(len(s.pages), self.graph.host_pages.shape[1]) * page_size for s in sequences]
        return all(h >= self.ends[self.index[s]] + reach for s, h in zip(sequences, held, strict=True))


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
                self._graphs[shape].prepare(is_drawn)

    def measure(self) -> None:
        """Time what was prepared, so that canvases can be as long as pays here. Before the first request."""
        rounds = tuple(
            TimedRound(shape.num_sequences, shape.canvas_len, shape.num_sets > 0, time_replay(graph.prepare(False)))
            for shape, graph in self._graphs.items()
        )
        self.pace = Pace(self.forward_ms(), rounds)

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        if self._flight is not None and not (self._flight.expects(works) and self._launch_ahead(works)):
            self._drop()
        if self._flight is None:
            self._take_off(works)
        if self._flight is None:
            return super().run(works)
        return self._land(self._flight, works)

    def _take_off(self, works: Seq[Work]) -> None:
        if not works or not all(is_draft(work) and is_plain(work) for work in works):
            return
        lens = {len(work.tail.token_ids) + 1 for work in works if work.tail is not None}
        fitting = [s for s in self._graphs if {s.canvas_len} == lens and s.num_sequences >= len(works)]
        if not fitting:
            return
        graph = self._graphs[min(fitting, key=lambda shape: (shape.num_sequences, -shape.num_sets))]
        is_drawn = any(work.sequence.request.params.temperature > 0 for work in works)
        index = {work.sequence: b for b, work in enumerate(works)}
        flight = Flight(graph, index, is_drawn, [work.end for work in works], [()] * len(works))
        if flight.has_pages([work.sequence for work in works], self.cache.page_size):
            _load(graph, works)
            self._flight = flight
            self._launch_ahead(works)

    def _land(self, flight: Flight, works: Seq[Work]) -> list[Outcome | None]:
        """The half of a round that `works` asks for, or the whole of it where it is one forward."""
        if flight.graph.shape.num_sets:
            results, wait = flight.rounds.popleft()
            wait()
            return [_choose(flight, results[0], work) for work in works]
        half = 0 if flight.landed is None else 1
        if half == 0:
            results, wait = flight.rounds.popleft()
            wait()
            flight.landed = results
        assert flight.landed is not None
        outcomes = [_outcome(flight, flight.landed[half], work) for work in works]
        for work, outcome in zip(works, outcomes, strict=True):
            _advance(flight, flight.index[work.sequence], half, outcome.proposal.token_ids.tolist())
        if half == 1 or flight.graph.shape.canvas_len == 1:
            flight.landed = None
        return list(outcomes)

    def _launch_ahead(self, works: Seq[Work]) -> bool:
        """Keep the device busy before waiting for it; False when there is nothing to wait for, for want of pages."""
        flight = self._flight
        assert flight is not None
        sequences = [work.sequence for work in works]
        depth = SHORT_DEPTH if flight.graph.shape.canvas_len == 1 else DEPTH
        while len(flight.rounds) < depth and flight.has_pages(sequences, self.cache.page_size):
            _send_pages(flight.graph, [(flight.index[s], s) for s in sequences])
            flight.rounds.append(flight.graph.launch(flight.is_drawn))
        return flight.landed is not None or bool(flight.rounds)

    def _drop(self) -> None:
        """Forget what ran ahead, once it has run: nothing may write behind the back of the next forward."""
        assert self._flight is not None
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self._flight.graph.state.position.fill_(-1)
        self._flight = None


def is_draft(work: Work) -> bool:
    """Whether `work` is one committed token and a canvas of masks: the first half of a verify round."""
    name = work.sequence.request.params.decoder.name
    if work.tail is None or name not in (DecoderName.VERIFY, DecoderName.AR) or work.end - work.start != 1:
        return False
    return not work.tail.is_causal and all(work.tail.is_masked)


def _load(graph: RoundGraph, works: Seq[Work]) -> None:
    """The sequences' state onto the device; the only time the host writes it."""
    head = graph.head
    ints = torch.tensor([[work.sequence.tokens[work.end - 1], work.end - 1] for work in works], dtype=torch.int32)
    graph.state.position.fill_(-1)
    graph.state.draft.fill_(-1)
    graph.state.last[: len(works)] = ints[:, 0].to(graph.state.last.device)
    graph.state.position[: len(works)] = ints[:, 1].to(graph.state.last.device)
    for b, work in enumerate(works):
        params = work.sequence.request.params
        for rows in graph.proposals_of(b):
            head.host_seeds[rows], head.host_heat[rows] = params.seed, params.temperature
    head.seeds.copy_(head.host_seeds)
    head.heat.copy_(head.host_heat)
    graph.host_pages.fill_(-1)


def _send_pages(graph: RoundGraph, sequences: Seq[tuple[int, Sequence]]) -> None:
    """Page tables only grow in flight, so a copy still under way can only bring entries early."""
    device = graph.rows.inputs.tables.pages
    for b, sequence in sequences:
        count = min(len(sequence.pages), device.shape[1])
        if int(graph.host_pages[b, count - 1]) != sequence.pages[count - 1]:
            graph.host_pages[b, :count] = torch.tensor(sequence.pages[:count], dtype=torch.int32)
            device[b, :count].copy_(graph.host_pages[b, :count], non_blocking=True)


def _outcome(flight: Flight, results: Tensor, work: Work) -> Outcome:
    canvas_len = flight.graph.shape.canvas_len
    first = flight.index[work.sequence] * canvas_len
    return Outcome(Proposal(*read_results(results[:, first : first + canvas_len])), [])


def _choose(flight: Flight, results: Tensor, work: Work) -> Outcome:
    """What a round of one forward says: the verify rows' proposals and the set behind the last that agreed, which is
    the next draft. The first round of a flight had nothing to verify and answers the request for a draft."""
    b, num_masks = flight.index[work.sequence], flight.graph.shape.canvas_len - 1
    rows, sets = flight.graph.proposals_of(b)
    verified, drafts = results[:, rows], results[:, sets].unflatten(1, (-1, num_masks))
    accepted = _agreement(verified[0].tolist(), flight.drafts[b])
    chosen, is_first = drafts[:, accepted], not flight.drafts[b]
    flight.drafts[b] = tuple(chosen[0].tolist())
    flight.ends[b] += accepted + 1
    if is_first:
        return Outcome(Proposal(*read_results(torch.cat((verified[:, :1], chosen), 1))), [])
    return Outcome(Proposal(*read_results(verified)), [], draft=Proposal(*read_results(chosen)))


def _agreement(tokens: list[int], draft: tuple[int, ...]) -> int:
    accepted = 0
    while accepted < len(draft) and tokens[accepted] == draft[accepted]:
        accepted += 1
    return accepted


def _advance(flight: Flight, b: int, half: int, tokens: list[int]) -> None:
    """What the device did to its state, repeated on the host's copy."""
    if half == 0:
        flight.drafts[b] = tuple(tokens[1:])
        flight.ends[b] += 1
        return
    flight.ends[b] += _agreement(tokens, flight.drafts[b]) + 1
    flight.drafts[b] = ()
