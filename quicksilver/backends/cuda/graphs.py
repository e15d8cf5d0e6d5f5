"""Forwards as CUDA graphs: small host arrays into fixed buffers, one replay, one small result back.

A graph belongs to a bucket of rows and to whether canvas rows wear the adapter; the head has graphs of its own, so the
two kinds of bucket do not multiply. Requests with rare wishes (`wishes.py`: logprobs, penalties) share the same forward
and get their logits from the plain path behind it; those beside them keep the fused head.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, product

import torch
from torch import Tensor

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.batch import Batch, build_batch
from quicksilver.backends.cuda.bitmask_table import MaskTable
from quicksilver.backends.cuda.capture import capture, time_replay
from quicksilver.backends.cuda.kernels.attention import RowTables, cut_tiles
from quicksilver.backends.cuda.kernels.head import BLOCK_V, Bias, Draws, HeadRows, HeadSpace, propose_rows, read_results
from quicksilver.backends.cuda.kernels.network import Network, Product, RowInputs, Space
from quicksilver.backends.cuda.kernels.rope_kernel import RowSlots, angle_table
from quicksilver.backends.cuda.kernels.weights import collect
from quicksilver.backends.cuda.logit_bias import HEAD_KINDS, MASKED_KINDS, BiasTable, HeadKind, is_fused, kind_of
from quicksilver.backends.torch.backend import TorchBackend, with_prompt_lookup
from quicksilver.core import DecodeParams
from quicksilver.diffusion.decoders import noise_step
from quicksilver.diffusion.sample import Proposal
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer

SMALLEST = 16


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """What the fixed buffers hold."""

    max_rows: int = 512
    max_segments: int = 64
    context_len: int = 4096
    scheme: str = "bfloat16"
    """bfloat16 keeps the model's weights; fp8 and int4 round its matrices."""
    product: Product = Product.FASTEST


def bucket_of(count: int) -> int:
    """The smallest power of two from 16 that holds `count` rows."""
    return max(SMALLEST, 1 << max(count - 1, 0).bit_length())


class Mark:
    """A point in the device's queue that the host can wait for. Without a queue there is nothing to wait for."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def mark(self) -> None:
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


class RowBuffers:
    """One bucket's inputs: pinned on the host, fixed on the device, copied in three transfers."""

    NAMES = ("token_ids", "mask_index", "positions", "slots", "prefix_end", "span_start", "span_end", "gate")

    def __init__(
        self,
        num_rows: int,
        num_tiles: int,
        pages: tuple[Tensor, Tensor],
        page_size: int,
        forks: Tensor | None = None,
    ) -> None:
        self.host_pages, device_pages = pages
        self.host = torch.zeros(len(self.NAMES), num_rows, dtype=torch.int32, pin_memory=_pins())
        self.host_tiles = torch.zeros(num_tiles, 3, dtype=torch.int32, pin_memory=_pins())
        # Cheaper to write than tensors.
        self._columns, self._tiles, self._pages = self.host.numpy(), self.host_tiles.numpy(), self.host_pages.numpy()
        self.device = self.host.to(device_pages.device)
        tiles = self.host_tiles.to(device_pages.device)
        column = dict(zip(self.NAMES, self.device, strict=True))
        forks = forks.to(device_pages.device) if forks is not None else None
        tables = RowTables(
            column["prefix_end"], column["span_start"], column["span_end"], tiles, device_pages, page_size, forks
        )
        where = RowSlots(column["positions"], column["slots"])
        self.inputs = RowInputs(column["token_ids"], column["mask_index"], where, column["gate"], tables)

    def first_tiles(self, count: int) -> RowInputs:
        """The same rows for who knows that no other tiles are used: attention then launches no programs for them."""
        tables = self.inputs.tables
        return replace(self.inputs, tables=replace(tables, tiles=tables.tiles[:count]))

    def fill(self, batch: Batch, tile_rows: int) -> None:
        """Queue the copies of one forward's rows; what is behind them in the bucket writes nothing. The copies of the
        forward before must be over, since all buckets share one page table."""
        plan, count = batch.plan, len(batch.token_ids)
        columns = [batch.token_ids, batch.mask_index, plan.positions, plan.slots]
        columns += [plan.prefix_end, plan.span_start, plan.span_end, plan.is_canvas]
        self._columns[:, count:] = 0
        self._columns[3, count:] = -1
        for target, values in zip(self._columns, columns, strict=True):
            target[:count] = values.numpy()
        tiles = cut_tiles([(segment.row_start, segment.row_end) for segment in plan.segments], tile_rows)
        self._tiles[len(tiles) :] = 0
        self._tiles[: len(tiles)] = tiles
        self._fill_pages(batch)
        self.device.copy_(self.host, non_blocking=True)
        self.inputs.tables.tiles.copy_(self.host_tiles, non_blocking=True)

    def _fill_pages(self, batch: Batch) -> None:
        lines = [segment.page_ids.numpy() for segment in batch.plan.segments]
        width = min(max(map(len, lines)), self.host_pages.shape[1])
        used = (slice(len(lines)), slice(width))
        for target, pages in zip(self._pages[used], lines, strict=True):
            target[: len(pages)] = pages[:width]
            target[len(pages) :] = 0
        self.inputs.tables.pages[used].copy_(self.host_pages[used], non_blocking=True)


class HeadBuffers:
    """One bucket of proposing rows: which rows, how they are drawn and biased, and their four numbers back on the
    host. Where rounds fill it there are no `bits`: they know no grammars."""

    def __init__(self, num_rows: int, head: Tensor, dtype: torch.dtype, bits: Tensor | None = None) -> None:
        device, self.bits = head.device, bits
        self.host_ints = torch.zeros(3, num_rows, dtype=torch.int32, pin_memory=_pins())
        self.host_seeds = torch.zeros(num_rows, dtype=torch.int64, pin_memory=_pins())
        self.host_heat = torch.zeros(num_rows, pin_memory=_pins())
        self._ints, self._seeds, self._heat = (t.numpy() for t in (self.host_ints, self.host_seeds, self.host_heat))
        self.ints, self.seeds = self.host_ints.to(device), self.host_seeds.to(device)
        self.heat = self.host_heat.to(device)
        self.draws = Draws(self.heat, self.seeds, self.ints[1], self.ints[2])
        self.space = HeadSpace.allocate(head, num_rows, dtype)
        self.bias = BiasTable(num_rows, self.space.tiles.shape[1], BLOCK_V, device)
        self.host_results = torch.zeros(4, num_rows, dtype=torch.int32, pin_memory=_pins())

    def fill(self, batch: Batch, index: Tensor, works: Seq[Work], kind: HeadKind) -> None:
        """`index`: the rows of `batch` that propose for `works`. What this kind of head does not read is left alone."""
        self._ints[:] = 0
        self._ints[0, : len(index)] = index.numpy()
        self._ints[1, : len(index)] = batch.plan.positions.numpy()[index.numpy()] + 1
        at = 0
        for work in works:
            rows = slice(at, at + work.num_proposals)
            self.write_wishes(rows, work.sequence.request.params, kind)
            if kind.is_drawn:
                self._ints[2, rows] = _noise_step(work)
            at = rows.stop
        self.ints.copy_(self.host_ints, non_blocking=True)
        self.send_wishes(kind)

    def write_wishes(self, rows: slice, params: DecodeParams, kind: HeadKind) -> None:
        """How a request's proposals are drawn and biased; on the host, and only what this kind of head reads."""
        if kind.is_drawn:
            self._seeds[rows], self._heat[rows] = params.seed, params.temperature
        if kind.is_biased:
            self.bias.write(rows, params)

    def send_wishes(self, kind: HeadKind) -> None:
        if kind.is_drawn:
            self.seeds.copy_(self.host_seeds, non_blocking=True)
            self.heat.copy_(self.host_heat, non_blocking=True)
        if kind.is_biased:
            self.bias.send()

    def rows(self, kind: HeadKind) -> HeadRows:
        bias = Bias(self.bias.ids, self.bias.values, self.bias.tiles) if kind.is_biased else None
        draws, bits = self.draws if kind.is_drawn else None, self.bits if kind.is_masked else None
        return HeadRows(self.ints[0], draws, bits, bias)

    def read(self, count: int) -> Proposal:
        """Waits for the device; the only place that does."""
        self.host_results.copy_(self.space.results, non_blocking=True)
        _wait(self.space.results.device)
        return Proposal(*read_results(self.host_results[:, :count].clone()))


@dataclass(frozen=True, slots=True)
class Way:
    """Which of a bucket's graphs: up to 32 rows a prompt among them means other kernels, and the rows of one sequence,
    or as few tiles, fewer programs in attention. Elsewhere there is one."""

    has_prompt: bool = False
    is_lone: bool = False


class GraphRunner(TorchBackend):
    """A TorchBackend whose forwards are graph replays. Graphs are made at first use, or all at once by `prepare`."""

    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int, limits: GraphLimits) -> None:
        super().__init__(model, cache, logit_rows)
        self.limits = limits
        weights = collect(model, limits.scheme)
        # One page beyond the context, so that a row that runs ahead of the text still finds its angles.
        max_pages = -(-limits.context_len // cache.page_size) + 1
        angles = angle_table(model.rope, max_pages * cache.page_size)
        self.network = Network(model.config, weights, cache, angles, limits.product)
        self._x = torch.zeros(bucket_of(limits.max_rows), model.config.dim, device=self.device, dtype=model.dtype)
        self._host_pages = torch.zeros(limits.max_segments, max_pages, dtype=torch.int32, pin_memory=_pins())
        self.pages = self._host_pages.to(self.device)
        self._masks = MaskTable(len(self._x), model.config.vocab_size, self.device)
        self._sent = Mark(self.device)
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._rows: dict[tuple[int, bool], tuple[RowBuffers, Space]] = {}
        self._heads: dict[int, HeadBuffers] = {}
        self._replays: dict[tuple[object, ...], Callable[[], None]] = {}

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        batch = build_batch(works, self.cache.page_size)
        if not self._holds(batch):
            return super().run(works)
        x, is_rare = self._launch(batch), [not is_fused(work) for work in works]
        if any(is_rare):
            return with_prompt_lookup(works, self._divide(batch, works, is_rare, x))
        return with_prompt_lookup(works, self._fuse(batch, batch.proposing, works))

    def prepare(self, row_counts: Seq[int], canvas_lens: Seq[int] = (1, 16)) -> None:
        """Capture the graphs of these row counts and numbers of proposals before the first request needs them."""
        kinds = (False, True) if self.model.canvas is not None else (False,)
        for count in sorted({bucket_of(count) for count in row_counts}):
            ways = (Way(), Way(is_lone=True), Way(has_prompt=True)) if self.network.is_between(count) else (Way(),)
            for way, is_gated in product(ways, kinds):
                self._graph((count, is_gated, way), partial(self._run, count, is_gated, way))
        for count in sorted({bucket_of(count) for count in canvas_lens}):
            head = self._head(count)
            for kind in HEAD_KINDS + MASKED_KINDS:
                self._graph(("head", count, kind), partial(self._propose, head, kind))

    def forward_ms(self) -> dict[tuple[int, bool], float]:
        """Times of the graphs made so far, by rows and by whether canvas rows wear the adapter; the head of as many
        proposals is part of each. To be asked while no request holds pages: replays write into the cache."""
        plain = HeadKind()
        heads = {key[1]: time_replay(run) for key, run in self._replays.items() if key[0] == "head" and key[2] == plain}
        bodies = {key[:2]: time_replay(run) for key, run in self._replays.items() if key[2] == Way()}
        return {(int(str(n)), bool(g)): ms + heads[n] for (n, g), ms in bodies.items() if n in heads}

    def _divide(self, batch: Batch, works: Seq[Work], is_rare: Seq[bool], x: Tensor) -> list[Outcome | None]:
        """Rare wishes go the plain way behind the shared forward, all others get the fused head."""
        num_proposals = torch.tensor([work.num_proposals for work in works])
        is_rare_row = torch.tensor(is_rare).repeat_interleave(num_proposals)
        rows, fused_rows = batch.proposing[is_rare_row], batch.proposing[~is_rare_row]
        rare = list(compress(works, is_rare))
        usual = list(compress(works, (not one for one in is_rare)))
        # The plain way may raise, so it comes before any copy of the head's is under way.
        answers = iter(self._answer(rare, self.model.norm(x[rows.to(self.device)])))
        others = iter(self._fuse(batch, fused_rows, usual))
        return [next(answers if one else others) for one in is_rare]

    def _fuse(self, batch: Batch, index: Tensor, works: Seq[Work]) -> list[Outcome | None]:
        """`index`: the rows of `batch` that propose for `works`."""
        asking, count = [work for work in works if work.num_proposals], bucket_of(len(index))
        if not asking:
            return [None] * len(works)
        head, kind = self._head(count), kind_of(asking)
        if kind.is_masked:
            # While the forward runs; and, since it may raise, before any copy of the head's is under way.
            self._masks.write(asking)
            self._masks.send()
        head.fill(batch, index, asking, kind)
        self._replay(("head", count, kind), lambda: self._propose(head, kind))
        return _cut(works, head.read(len(index)))

    def _holds(self, batch: Batch) -> bool:
        rows_fit = len(batch.token_ids) <= len(self._x)
        return rows_fit and len(batch.plan.segments) <= len(self.pages)

    def _launch(self, batch: Batch) -> Tensor:
        """The residual stream of the batch's rows, queued on the device."""
        key = self.key_of(batch)
        count, _, way = key
        buffers, space = self._buffers(count, way.has_prompt)
        self._sent.wait()
        buffers.fill(batch, self.network.shape(count, way.has_prompt).tile_rows)
        self._sent.mark()
        self._replay(key, lambda: self._run(*key))
        return space.x

    def key_of(self, batch: Batch) -> tuple[int, bool, Way]:
        """The graph that a batch is run by: its bucket, whether canvas rows wear the adapter, and the way."""
        count = bucket_of(len(batch.token_ids))
        if not self.network.is_between(count):
            return count, batch.has_canvas, Way()
        tile_rows, segments = self.network.shape(count).tile_rows, batch.plan.segments
        num_tiles = sum(-(-(segment.row_end - segment.row_start) // tile_rows) for segment in segments)
        is_lone = not batch.has_prompt and num_tiles <= self._lone_tiles(count)
        return count, batch.has_canvas, Way(batch.has_prompt, is_lone)

    def _run(self, count: int, is_gated: bool, way: Way) -> None:
        buffers, space = self._buffers(count, way.has_prompt)
        inputs = buffers.first_tiles(self._lone_tiles(count)) if way.is_lone else buffers.inputs
        self.network.run(inputs, space, is_gated)

    def _lone_tiles(self, count: int) -> int:
        """Of a bucket's rows where they are of one sequence."""
        return -(-count // self.network.shape(count).tile_rows)

    def _propose(self, head: HeadBuffers, kind: HeadKind) -> None:
        weights = self.network.weights
        propose_rows(self._x, weights.norm, weights.head, head.rows(kind), head.space)

    def _buffers(self, count: int, has_prompt: bool = False) -> tuple[RowBuffers, Space]:
        """`has_prompt` only where that makes a difference."""
        if (count, has_prompt) not in self._rows:
            tile_rows = self.network.shape(count, has_prompt).tile_rows
            num_tiles = -(-count // tile_rows) + min(count, self.limits.max_segments)
            buffers = RowBuffers(count, num_tiles, (self._host_pages, self.pages), self.cache.page_size)
            space = self.network.space(count, has_prompt).with_x(self._x)
            self._rows[count, has_prompt] = (buffers, space)
        return self._rows[count, has_prompt]

    def _head(self, count: int) -> HeadBuffers:
        if count not in self._heads:
            head, bits = self.network.weights.head.w, self._masks.bits[:count]
            self._heads[count] = HeadBuffers(count, head, self.network.input_dtype, bits)
        return self._heads[count]

    def _replay(self, key: tuple[object, ...], work: Callable[[], None]) -> None:
        self._graph(key, work)()

    def _graph(self, key: tuple[object, ...], work: Callable[[], None]) -> Callable[[], None]:
        if key not in self._replays:
            self._replays[key] = capture(work, self.device, self.pool)
        return self._replays[key]


def _noise_step(work: Work) -> int:
    sequence = work.sequence
    return noise_step(sequence.request.params.decoder, sequence.canvas.step if sequence.canvas is not None else 0)


def _cut(works: Seq[Work], proposal: Proposal) -> list[Outcome | None]:
    outcomes: list[Outcome | None] = []
    at = 0
    for work in works:
        rows = slice(at, at + work.num_proposals)
        outcomes.append(Outcome(proposal[rows], []) if work.num_proposals else None)
        at = rows.stop
    return outcomes


def _pins() -> bool:
    return torch.cuda.is_available()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
