"""Fixed host and device buffers of captured graphs: the rows of a forward, and those that the head predicts from."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.batch import Batch
from quicksilver.backends.cuda.kernels.attention import RowTables, cut_tiles
from quicksilver.backends.cuda.kernels.head import (
    BLOCK_V,
    Bias,
    Draws,
    HeadRows,
    HeadWorkspace,
    read_results,
)
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.backends.cuda.kernels.rope_kernel import RowSlots
from quicksilver.backends.cuda.kernels.workspace import RowInputs
from quicksilver.backends.cuda.logit_bias import BiasTable, SamplingOptions
from quicksilver.core import DecodeParams
from quicksilver.diffusion.sample import Proposal, ProposalTensors

SMALLEST_BUCKET = 16
# Row counts of forwards without a graph are multiples of it.
PROMPT_ROW_STEP = 256


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """The capacity of the fixed buffers, and how the kernels hold and multiply weights."""

    max_rows: int = 512  # of a graph
    max_segments: int = 64
    context_len: int = 4096
    # bfloat16 keeps the model's weights; fp8 and int4 quantise its matrices.
    scheme: str = "bfloat16"
    matmul_mode: MatmulMode = MatmulMode.FASTEST
    prompt_rows: int = 0  # of a forward without a graph; 0 runs none
    adapter_bytes: int = 0  # of row adapters; 0 applies none


def bucket_of(count: int) -> int:
    """The smallest power of two, at least 16, that holds `count` rows."""
    return max(SMALLEST_BUCKET, 1 << max(count - 1, 0).bit_length())


def uses_pinned_memory() -> bool:
    return torch.cuda.is_available()


class StreamMarker:
    """A point in the current stream that the host can wait for. Without CUDA nothing is queued, so nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def record(self) -> None:
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


class RowBuffers:
    """The inputs of one row bucket: pinned on the host, at fixed addresses on the device, copied in three transfers."""

    # `gate` is 1 on canvas rows, which turns the canvas adapter on for them.
    NAMES = ("token_ids", "mask_index", "positions", "slots", "prefix_end", "span_start", "span_end", "gate")

    def __init__(
        self,
        num_rows: int,
        num_tiles: int,
        pages: tuple[Tensor, Tensor],
        page_size: int,
        tree_slots: Tensor | None = None,
    ) -> None:
        """`pages`: the page table on the host and on the device. `tree_slots`: of a draft tree, see `RowTables`."""
        self.host_pages, device_pages = pages
        self.host = torch.zeros(len(self.NAMES), num_rows, dtype=torch.int32, pin_memory=uses_pinned_memory())
        self.host_tiles = torch.zeros(num_tiles, 3, dtype=torch.int32, pin_memory=uses_pinned_memory())
        # numpy views are cheaper to write than tensors.
        self._columns, self._tiles, self._pages = self.host.numpy(), self.host_tiles.numpy(), self.host_pages.numpy()
        self.device = self.host.to(device_pages.device)
        tiles = self.host_tiles.to(device_pages.device)
        column = dict(zip(self.NAMES, self.device, strict=True))
        tree_slots = tree_slots.to(device_pages.device) if tree_slots is not None else None
        tables = RowTables(
            column["prefix_end"], column["span_start"], column["span_end"], tiles, device_pages, page_size, tree_slots
        )
        where = RowSlots(column["positions"], column["slots"])
        self.inputs = RowInputs(column["token_ids"], column["mask_index"], where, column["gate"], tables)

    def first_tiles(self, count: int) -> RowInputs:
        """The same rows with the first `count` attention tiles only: a smaller attention grid."""
        tables = self.inputs.tables
        return replace(self.inputs, tables=replace(tables, tiles=tables.tiles[:count]))

    def mark_used(self, vocab_size: int) -> None:
        """Different tokens in every row, without attention, for timing: unused rows would choose no experts, and rows
        with the same text would choose the same ones."""
        ids = torch.arange(self.host.shape[1], dtype=torch.int64) * vocab_size // self.host.shape[1]
        self.inputs.token_ids.copy_(ids)
        self.inputs.tables.prefix_end.fill_(1)
        self.inputs.tables.tiles.zero_()

    def fill(self, batch: Batch, tile_rows: int) -> None:
        """Queue the copies of one forward's rows. Unused rows of the bucket write no KV. The copies of the previous
        forward must be complete, because all buckets share one page table."""
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
        lines = [segment.page_ids.numpy()[: self.host_pages.shape[1]] for segment in batch.plan.segments]
        lengths = np.array([len(line) for line in lines])
        width = int(lengths.max())
        used = (slice(len(lines)), slice(width))
        self._pages[used] = 0
        self._pages[used][np.arange(width) < lengths[:, None]] = np.concatenate(lines)
        self.inputs.tables.pages[used].copy_(self.host_pages[used], non_blocking=True)


class HeadBuffers:
    """One bucket of proposing rows: their indices, sampling parameters and logit bias, and the results on the host.

    `bits` are the grammar bitmasks; None for rounds, which never run under a grammar.
    """

    def __init__(
        self, num_rows: int, head: Tensor, dtype: torch.dtype, bits: Tensor | None = None, block_v: int = BLOCK_V
    ) -> None:
        device, self.bits, is_pinned = head.device, bits, uses_pinned_memory()
        self.host_ints = torch.zeros(3, num_rows, dtype=torch.int32, pin_memory=is_pinned)
        self.host_seeds = torch.zeros(num_rows, dtype=torch.int64, pin_memory=is_pinned)
        self.host_temperature = torch.zeros(num_rows, pin_memory=is_pinned)
        self._ints, self._seeds = self.host_ints.numpy(), self.host_seeds.numpy()
        self._temperature = self.host_temperature.numpy()
        # (3, rows): hidden row, position that keys the noise, and noise step of each proposal.
        self.ints, self.seeds = self.host_ints.to(device), self.host_seeds.to(device)
        self.temperature = self.host_temperature.to(device)
        self.draws = Draws(self.temperature, self.seeds, self.ints[1], self.ints[2])
        self.workspace = HeadWorkspace.allocate(head, num_rows, dtype, block_v)
        self.bias = BiasTable(num_rows, self.workspace.tiles.shape[1], block_v, device)
        self.host_results = torch.zeros(4, num_rows, dtype=torch.int32, pin_memory=is_pinned)
        self._results_sent = StreamMarker(device)

    def fill(
        self, batch: Batch, index: Tensor, works: Seq[Work], options: SamplingOptions, is_gathered: bool = False
    ) -> None:
        """`index`: the proposals of `batch` that belong to `works`. Only what the graph of `options` reads is written.
        `is_gathered`: the hidden states of proposing rows follow each other, without the other rows."""
        proposing = batch.proposing[index].numpy()
        self._ints[:] = 0
        self._ints[0, : len(index)] = index.numpy() if is_gathered else proposing
        sequences, counts = [work.sequence for work in works], np.array([work.num_proposals for work in works])
        ends, firsts = counts.cumsum(), np.array([len(sequence.tokens) for sequence in sequences])
        self._ints[1, : len(index)] = np.arange(len(index)) + (firsts - ends + counts).repeat(counts)
        params = [sequence.request.params for sequence in sequences]
        if options.is_sampled:
            self._ints[2, : len(index)] = np.array([sequence.noise_step for sequence in sequences]).repeat(counts)
            self._seeds[: len(index)] = np.array([one.seed for one in params]).repeat(counts)
            self._temperature[: len(index)] = np.array([one.temperature for one in params]).repeat(counts)
        if options.is_biased:
            for one, end, count in zip(params, ends.tolist(), counts.tolist(), strict=True):
                self.bias.write(slice(end - count, end), one)
        self.ints.copy_(self.host_ints, non_blocking=True)
        self.send_params(options)

    def write_params(self, rows: slice, params: DecodeParams, options: SamplingOptions) -> None:
        """Write a request's sampling parameters on the host, only those that the graph of `options` reads."""
        if options.is_sampled:
            self._seeds[rows], self._temperature[rows] = params.seed, params.temperature
        if options.is_biased:
            self.bias.write(rows, params)

    def send_params(self, options: SamplingOptions) -> None:
        if options.is_sampled:
            self.seeds.copy_(self.host_seeds, non_blocking=True)
            self.temperature.copy_(self.host_temperature, non_blocking=True)
        if options.is_biased:
            self.bias.send()

    def rows(self, options: SamplingOptions) -> HeadRows:
        bias = Bias(self.bias.ids, self.bias.values, self.bias.tiles) if options.is_biased else None
        draws, bits = self.draws if options.is_sampled else None, self.bits if options.is_masked else None
        return HeadRows(self.ints[0], draws, bits, bias)

    def send_results(self) -> None:
        """Queue the copy of the results to the host."""
        self.host_results.copy_(self.workspace.results, non_blocking=True)
        self._results_sent.record()

    def read(self, count: int) -> Proposal:
        """Wait for the results, not for what was queued after them, and return the first `count` proposals."""
        self._results_sent.wait()
        return read_proposal(self.host_results[:, :count].clone())


def copy_to_host(results: Tensor) -> tuple[Tensor, StreamMarker]:
    """Queue a copy to new memory of the host -> the copy, and when it is complete."""
    host = torch.empty_like(results, device="cpu", pin_memory=results.is_cuda)
    host.copy_(results, non_blocking=True)
    arrived = StreamMarker(results.device)
    arrived.record()
    return host, arrived


def split_proposals(works: Seq[Work], proposal: Proposal) -> list[Outcome | None]:
    """The outcome of each work, without log-probabilities, from the proposals of all of them."""
    outcomes, start = list[Outcome | None](), 0
    for work in works:
        rows = slice(start, start + work.num_proposals)
        outcomes.append(Outcome(proposal[rows], []) if work.num_proposals else None)
        start = rows.stop
    return outcomes


def read_proposal(results: Tensor) -> Proposal:
    """(4, rows) int32, on the host and not written again."""
    return ProposalTensors(*read_results(results)).to_host()
