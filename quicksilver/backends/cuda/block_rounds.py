"""Rounds of `confidence` and `edit` in dialects with blocks: forwards that the device prepares, ahead of the host.

A round is a forward over the canvas of each sequence and over the block before it, if that was just completed. The
device then decides positions by the request's rule, which gives the rows of the next round. With its results a round
returns the rows that it computed. The host compares them with the work that the engine passes: if they are equal, the
results are those of this work, else (after a stop, a new request or an abort) the rounds in flight are discarded. They
wrote KV only after the committed tokens, and the next forward overwrites it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.backends.cuda.block_kernels import (
    MAX_SEQUENCES,
    RULES,
    BlockRows,
    BlockState,
    decide_blocks,
    snapshot_width,
    write_block_rows,
)
from quicksilver.backends.cuda.buffers import (
    HeadBuffers,
    RowBuffers,
    StreamMarker,
    bucket_of,
    copy_to_host,
    read_proposal,
)
from quicksilver.backends.cuda.capture import capture
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.head import propose_rows
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.backends.cuda.kernels.wide_rounds import Sequences
from quicksilver.backends.cuda.logit_bias import UNMASKED_OPTIONS, SamplingOptions, fits_rounds, options_of
from quicksilver.backends.progress import counted
from quicksilver.core import DecoderName
from quicksilver.dialect import ContextKind, Dialect

# Rounds in flight when the host starts to wait: one runs, one is queued. At first, and in the last block of the
# answers, only one: rounds that are discarded delay what is queued after them, and batches change while requests
# arrive.
ROUNDS_AHEAD, CAREFUL_ROUNDS_AHEAD = 2, 1
# Rows for blocks that are written are idle in other rounds. They are free in rounds of at most `FREE_ROWS`, which are
# bound by the weights they read. A larger round has rows for as many blocks as are usually written, and is used if an
# ordinary forward would be padded to as many rows. Both are estimated with `TOKENS_PER_ROUND` for each request.
FREE_ROWS, MAX_ROUND_ROWS = 128, 1024
# Row counts of larger rounds are multiples of it.
ROW_STEP = 64
# Positions of a block that takes many rounds, so that few sequences write in the same one.
LONG_BLOCK = 16
TOKENS_PER_ROUND = 2


def has_rounds(dialect: Dialect) -> bool:
    """Whether block rounds know the dialect: a masked row predicts its own position, or all rows the next one."""
    is_block = dialect.context is ContextKind.BLOCK and not dialect.is_prompt_aligned and dialect.mask_id is not None
    return is_block and dialect.is_shifted == dialect.has_context_seed


def fits_round(work: Work, block_len: int) -> bool:
    """Whether a round can compute `work`: the canvas, and no other context than the block before it. Rounds do not
    apply the adapters of requests."""
    params, tail, num_context = work.sequence.request.params.decoder, work.tail, work.end - work.start
    is_known = params.name is DecoderName.EDIT or (params.name is DecoderName.CONFIDENCE and params.rule in RULES)
    if tail is None or not is_known or work.end % block_len or num_context not in (0, block_len):
        return False
    # Without canvas rows it is the first position of a block, which the block before predicts.
    has_rows = len(tail.token_ids) == block_len or num_context > len(tail.token_ids) == 0
    return has_rows and work.sequence.adapter is None and fits_rounds(work)


def capacities(size: int, block_len: int) -> tuple[int, ...]:
    """How many of `size` sequences may write a block in the same round: all in small rounds. Larger ones have graphs
    for fewer, because a request that decides two tokens per round writes a block of n in two of n rounds."""
    if 2 * size * block_len <= FREE_ROWS:
        return (size,)
    return (size // 4, size // 2, size) if block_len >= LONG_BLOCK else (size // 2, size * 5 // 8, size)


def expected_capacity(size: int, num_sequences: int, block_len: int) -> int:
    """The smallest one that usually suffices."""
    expected = -(-num_sequences * TOKENS_PER_ROUND // block_len)
    return next((one for one in capacities(size, block_len) if one >= expected), size)


def round_size(block_len: int, num_sequences: int, sizes: Iterable[int]) -> int:
    """The smallest of `sizes` that holds the sequences, or 0 if an ordinary forward would usually have fewer rows."""
    ordinary_rows = bucket_of(num_sequences * (block_len + TOKENS_PER_ROUND))
    size = next((size for size in sizes if size >= num_sequences), 0)
    num_rows = num_round_rows(size, expected_capacity(size, num_sequences, block_len), block_len)
    return size if num_rows <= max(ordinary_rows, FREE_ROWS) else 0


def num_round_rows(count: int, capacity: int, block_len: int) -> int:
    """Rows of a round of `count` sequences of which `capacity` write a block. Small ones are those of the graphs."""
    used = (count + capacity) * block_len
    return bucket_of(used) if used <= FREE_ROWS else -(-used // ROW_STEP) * ROW_STEP


class BlockGraph:
    """Buffers and graphs of rounds for up to `count` sequences, of which up to `capacity` write a block."""

    def __init__(self, executor: GraphExecutor, count: int, capacity: int) -> None:
        self.executor, self.dialect, device = executor, executor.model.config.dialect, executor.device
        self.count, self.capacity, self.block_len = count, capacity, self.dialect.block_len
        network, num_rows = executor.network, num_round_rows(count, capacity, self.block_len)
        if network.matmul_mode is MatmulMode.BATCH_INVARIANT:  # in chunks of equal size
            num_rows = bucket_of(num_rows)
        self.state = BlockState.allocate(count, self.block_len, executor.pages.shape[1], device)
        self.host = self.state.host_copy()
        self.host_pages = self.host.pages.numpy()
        self.workspace = network.workspace(num_rows, sequences=Sequences(count, 2 * self.block_len))
        tile_rows = self.workspace.attend.shape.tile_rows
        num_tiles = count * -(-2 * self.block_len // tile_rows)
        tables = (self.host.pages, self.state.pages)
        self.rows = RowBuffers(num_rows, num_tiles, tables, executor.cache.page_size)
        self.rows.device[3].fill_(-1)
        self.head = HeadBuffers(bucket_of(count * self.block_len), network.weights.head.w, network.input_dtype)
        self.num_heads = self.head.ints.shape[1]
        self._written = BlockRows(self.rows.device, self.rows.inputs.tables.tiles, self.head.ints, tile_rows)
        # Results of the head, then the snapshots.
        self._flat = torch.zeros(
            4 * self.num_heads + count * snapshot_width(self.block_len), dtype=torch.int32, device=device
        )
        self.results = self._flat[: 4 * self.num_heads].view(4, -1)
        self.snapshot = self._flat[4 * self.num_heads :].view(count, -1)
        self._sent = StreamMarker(device)
        self._replays: dict[SamplingOptions, Callable[[], None]] = {}

    def prepare(self, options: SamplingOptions) -> Callable[[], None]:
        """The replay of these options. Captured while the graph holds no sequence: a capture runs the round."""
        if options not in self._replays:
            self._replays[options] = capture(lambda: self._round(options), self.executor.device, self.executor.pool)
        return self._replays[options]

    def _round(self, options: SamplingOptions) -> None:
        network, page_size = self.executor.network, self.executor.cache.page_size
        write_block_rows(self.state, self.capacity, self._written, self.snapshot, page_size, self.dialect)
        x, weights = network.run(self.rows.inputs, self.workspace, is_gated=False), network.weights
        workspace = self.head.workspace.with_results(self.results, None)
        propose_rows(x, weights.norm, weights.head, self.head.rows(options), workspace)
        decide_blocks(self.state, self.results, self.dialect)

    def load(self, works: Seq[Work], options: SamplingOptions) -> None:
        """Copy the state of the sequences to the device. Later changes are made by the device alone."""
        self._sent.wait()
        host, length = self.host, self.block_len
        host.buffer.fill_(-1)
        for b, work in enumerate(works):
            sequence, tail = work.sequence, work.tail
            assert tail is not None
            assert sequence.canvas is not None
            host.start[b], host.step[b] = work.end, sequence.canvas.step
            host.writes[b], host.num_fixed[b] = work.end > work.start, sequence.canvas.num_fixed
            host.num_passes[b] = sequence.canvas.num_passes
            if work.end > work.start:
                host.before[b] = torch.tensor(sequence.tokens[work.start : work.end])
            host.block[b] = torch.tensor(shown(work, length))
            host.set_rule(b, sequence.request.params.decoder)
            self._write_pages(b, sequence)
            rows = slice(b * length, (b + 1) * length)
            self.head.write_params(rows, sequence.request.params, options)
        self.state.buffer.copy_(host.buffer, non_blocking=True)
        self.head.send_params(options)
        self._sent.record()

    def _write_pages(self, b: int, sequence: Sequence) -> None:
        pages = sequence.pages[: self.host_pages.shape[1]]
        self.host_pages[b, : len(pages)] = pages

    def send_pages(self, index: dict[Sequence, int]) -> None:
        """Copy page tables that have grown. They only grow while rounds are in flight, so a copy that is still queued
        can only deliver entries early."""
        grown = [
            (sequence, b)
            for sequence, b in index.items()
            if self.host_pages[b, min(len(sequence.pages), self.host_pages.shape[1]) - 1] < 0
        ]
        for sequence, b in grown:
            self._write_pages(b, sequence)
        if grown:
            self.state.pages.copy_(self.host.pages, non_blocking=True)
            self._sent.record()

    def launch(self, options: SamplingOptions) -> tuple[Tensor, StreamMarker]:
        """Queue a round -> where its results arrive on the host, and when."""
        self.prepare(options)()
        return copy_to_host(self._flat)

    def clear(self) -> None:
        """Mark all sequences as unused. Rounds in flight still run, before anything that is queued later."""
        self.state.start.fill_(-1)


def shown(work: Work, block_len: int) -> list[int]:
    """The tokens of the block that the canvas is part of, -1 where masked. Without rows all of it is masked."""
    assert work.tail is not None
    rows = zip(work.tail.token_ids, work.tail.is_masked, strict=True)
    return [-1 if is_masked else token for token, is_masked in rows] or [-1] * block_len


@dataclass(slots=True)
class _InFlight:
    """The sequences of the rounds in flight, and what the host knows of them."""

    graph: BlockGraph
    index: dict[Sequence, int]
    options: SamplingOptions
    ends: list[int]  # of each sequence: where the canvas of the last forward began that was read
    queued: deque[tuple[Tensor, StreamMarker]] = field(default_factory=deque)
    has_results: bool = False  # whether a round was read

    def has_pages(self, page_size: int) -> bool:
        """Whether another round writes only into pages that its sequences hold: each round completes at most a block,
        whose KV the next one writes."""
        max_pages, reach = self.graph.host_pages.shape[1], (len(self.queued) + 1) * self.graph.block_len
        held = ((min(len(one.pages), max_pages) * page_size, self.ends[b]) for one, b in self.index.items())
        return all(slots >= end + reach for slots, end in held)

    def depth(self) -> int:
        """How many rounds may be in flight."""
        block_len = self.graph.block_len
        is_last = all(self.ends[b] + block_len >= len(one.tokens) + one.room for one, b in self.index.items())
        return CAREFUL_ROUNDS_AHEAD if is_last or not self.has_results else ROUNDS_AHEAD


class BlockRounds:
    """`run` is one forward from a round, or None if the works need an ordinary forward."""

    def __init__(self, executor: GraphExecutor, max_sequences: int) -> None:
        self.executor, self.block_len = executor, executor.model.config.dialect.block_len
        largest = min(max_sequences, MAX_ROUND_ROWS // (2 * self.block_len), MAX_SEQUENCES)
        self.sizes = [1 << i for i in range(max(largest, 1).bit_length())]
        shapes = [(size, capacity) for size in self.sizes for capacity in capacities(size, self.block_len)]
        self.graphs = {shape: BlockGraph(executor, *shape) for shape in shapes}
        self._in_flight: _InFlight | None = None
        self._most_writers = 0  # in recent rounds

    def prepare(self) -> None:
        """Capture the small rounds. There are several larger ones of each size, which are captured at first use."""
        small = [graph for graph in self.graphs.values() if 2 * graph.count * self.block_len <= FREE_ROWS]
        for graph in counted("preparing block rounds", small):
            for options in UNMASKED_OPTIONS:
                graph.prepare(options)

    def run(self, works: Seq[Work]) -> list[Outcome | None] | None:
        outcomes = self._next(works)
        if outcomes is None and self._start(works):
            outcomes = self._next(works)
        return outcomes

    def _start(self, works: Seq[Work]) -> bool:
        """Whether rounds begin with `works`."""
        size = round_size(self.block_len, len(works), self.sizes)
        if not size or not all(fits_round(work, self.block_len) for work in works):
            return False
        graph, options = self.graphs[size, self._capacity(size, works)], options_of(works)
        index = {work.sequence: b for b, work in enumerate(works)}
        in_flight = _InFlight(graph, index, options, [work.end for work in works])
        if not in_flight.has_pages(self.executor.cache.page_size):
            return False
        graph.prepare(options)  # while it holds no sequence
        graph.load(works, options)
        self._in_flight = in_flight
        return True

    def _capacity(self, size: int, works: Seq[Work]) -> int:
        """For as many blocks as recent rounds wrote, and as are usually written."""
        num_writers = max(sum(work.end > work.start for work in works), self._most_writers)
        self._most_writers -= self._most_writers > 0
        expected = expected_capacity(size, len(works), self.block_len)
        return next(one for one in capacities(size, self.block_len) if one >= min(max(num_writers, expected), size))

    def _next(self, works: Seq[Work]) -> list[Outcome | None] | None:
        """The outcomes of the oldest round in flight. If it did not compute `works`, the rounds are discarded."""
        in_flight = self._in_flight
        if in_flight is None:
            return None
        if len(works) == len(in_flight.index) and all(work.sequence in in_flight.index for work in works):
            self._launch_ahead(in_flight)
            if in_flight.queued and (outcomes := self._read(in_flight, works)) is not None:
                return outcomes
        in_flight.graph.clear()
        self._in_flight = None
        return None

    def _read(self, in_flight: _InFlight, works: Seq[Work]) -> list[Outcome | None] | None:
        host, arrived = in_flight.queued.popleft()
        arrived.wait()
        num_results = 4 * in_flight.graph.num_heads
        snapshot = host[num_results:].numpy().reshape(in_flight.graph.count, -1)
        self._most_writers = max(self._most_writers, int((snapshot[:, 2] > 0).sum()))
        if not all(self._is_same(work, snapshot[in_flight.index[work.sequence]]) for work in works):
            return None
        in_flight.has_results = True
        proposal, outcomes = read_proposal(host[:num_results].view(4, -1)), list[Outcome | None]()
        for work in works:
            b = in_flight.index[work.sequence]
            in_flight.ends[b] = work.end
            first = b * self.block_len + work.sequence.canvas.num_fixed if work.sequence.canvas is not None else 0
            outcomes.append(Outcome(proposal[first : first + work.num_proposals], []))
        return outcomes

    def _launch_ahead(self, in_flight: _InFlight) -> None:
        graph, page_size, depth = in_flight.graph, self.executor.cache.page_size, in_flight.depth()
        while len(in_flight.queued) < depth and in_flight.has_pages(page_size):
            graph.send_pages(in_flight.index)
            in_flight.queued.append(graph.launch(in_flight.options))

    def _is_same(self, work: Work, computed: npt.NDArray[np.int32]) -> bool:
        """Whether a round computed the rows of `work`, with the same noise."""
        sequence, length = work.sequence, self.block_len
        if sequence.canvas is None or not fits_round(work, length):
            return False
        start, step, writes, *rows = computed.tolist()
        if (start, step, writes * length) != (work.end, sequence.canvas.step, work.end - work.start):
            return False
        before = sequence.tokens[work.start : work.end]
        return rows[: len(before)] == before and rows[length:] == shown(work, length)
