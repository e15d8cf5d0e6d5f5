"""Forwards as CUDA graph replays: small host arrays into fixed buffers, one replay, one small result back.

A forward graph is keyed by its row bucket, by whether canvas rows use the adapter, and by its variant. Heads have
graphs of their own, so the two kinds of bucket do not multiply. Requests with rare sampling options (`logit_bias.py`:
logprobs, penalties) share the same forward and get their logits from the eager path after it; the other requests of
the batch keep the fused head.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, product

import torch
from torch import Tensor

from quicksilver.backends.base import Outcome, PersistentBatch, Work
from quicksilver.backends.batch import Batch, build_batch
from quicksilver.backends.cuda.adapter_buffers import AdapterBuffers
from quicksilver.backends.cuda.adapter_table import AdapterTable
from quicksilver.backends.cuda.bitmask_table import BitmaskTable
from quicksilver.backends.cuda.buffers import (
    PROMPT_ROW_STEP,
    GraphLimits,
    HeadBuffers,
    RowBuffers,
    StreamMarker,
    bucket_of,
    split_proposals,
    uses_pinned_memory,
)
from quicksilver.backends.cuda.capture import capture, time_replay
from quicksilver.backends.cuda.kernels.head import propose_rows
from quicksilver.backends.cuda.kernels.network import CudaNetwork
from quicksilver.backends.cuda.kernels.rope_kernel import angle_table
from quicksilver.backends.cuda.kernels.weights import collect, free_matrices
from quicksilver.backends.cuda.kernels.workspace import Workspace
from quicksilver.backends.cuda.logit_bias import (
    MASKED_OPTIONS,
    UNMASKED_OPTIONS,
    SamplingOptions,
    fits_fused_head,
    options_of,
)
from quicksilver.backends.progress import counted
from quicksilver.backends.round_cost import RoundCost
from quicksilver.backends.torch.backend import TorchBackend, with_prompt_lookup
from quicksilver.errors import InvalidRequest, RowFailed
from quicksilver.model.attention import PagedCache
from quicksilver.model.lowrank import Adapter
from quicksilver.model.row_adapters import RowAdapter
from quicksilver.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class GraphVariant:
    """A bucket of <= 32 rows has three graphs: decode, decode of one sequence (smaller attention grid), and with a
    prompt (64-row kernels). Larger buckets have one. With row adapters every bucket has one more, which runs the
    kernels of batches with a prompt."""

    has_prompt: bool = False
    is_single: bool = False
    has_adapters: bool = False


class GraphExecutor:
    """Runs batches as graph replays. Graphs are captured at first use, or in advance by `prepare`."""

    round_cost: RoundCost | None = None  # rounds are measured by CudaBackend
    persistent: PersistentBatch | None = None  # see CudaBackend

    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int, limits: GraphLimits) -> None:
        # Serves batches that exceed the buffers and requests with rare sampling options.
        self.eager = TorchBackend(model, cache, logit_rows)
        self.model, self.cache, self.limits, self.device = model, cache, limits, cache.k.device
        # One page more than the context: a row that runs ahead of the text still has its page.
        max_pages = -(-limits.context_len // cache.page_size) + 1
        # A canvas at the end of the context extends beyond it, by as many rows as a forward has at most.
        num_angles = max_pages * cache.page_size + bucket_of(limits.max_rows)
        angles = angle_table(model.rope, num_angles, model.config.head_dim)
        self.network = CudaNetwork(model.config, collect(model, limits.scheme), cache, angles, limits.matmul_mode)
        self._x = torch.zeros(bucket_of(limits.max_rows), model.config.dim, device=self.device, dtype=model.dtype)
        shape = (limits.max_segments, max_pages)
        self._host_pages = torch.zeros(shape, dtype=torch.int32, pin_memory=uses_pinned_memory())
        self.pages = self._host_pages.to(self.device)
        self.adapters = AdapterBuffers.for_network(self.network, limits, model.device)
        self._bitmasks = BitmaskTable(len(self._x), model.config.vocab_size, self.device)
        self._sent = StreamMarker(self.device)
        self.has_matrices = True  # False after `free_matrices`
        self.before_wait: Callable[[], None] = lambda: None  # see `PersistentBatch`
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._rows: dict[tuple[int, bool], tuple[RowBuffers, Workspace]] = {}
        self._prompt_rows: dict[int, RowBuffers] = {}
        self._heads: dict[int, HeadBuffers] = {}
        self._replays: dict[tuple[object, ...], Callable[[], None]] = {}

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        """One forward; the contract of `Backend.run`."""
        batch = build_batch(works, self.cache.page_size)
        if not self._holds(batch):
            if not self.has_matrices:
                raise RowFailed("the batch exceeds the buffers of the CUDA backend")
            return self.eager.run(works)
        x, is_rare = self.launch(batch), [not fits_fused_head(work.sequence) for work in works]
        if any(is_rare):
            return with_prompt_lookup(works, self._split_heads(batch, works, is_rare, x))
        return with_prompt_lookup(works, self._fused_head(batch, torch.arange(len(batch.proposing)), works))

    @property
    def supports_adapters(self) -> bool:
        return self.adapters is not None

    @property
    def adapter_store(self) -> AdapterTable | None:
        return None if self.adapters is None else self.adapters.table

    def convert_adapter(self, adapter: Adapter) -> RowAdapter:
        if self.adapters is None:
            raise InvalidRequest(
                "this server has no memory for adapters of single requests; set adapter_bytes, or merge the adapter "
                "with --adapter PATH",
                param="model",
            )
        return self.adapters.table.convert(adapter)

    def free_matrices(self) -> None:
        """Drop the 16-bit matrices of which the kernels hold quantised copies. Batches that exceed the buffers are
        refused from now on."""
        if self.limits.scheme != "bfloat16":
            free_matrices(self.model)
            self.has_matrices = False

    def prepare(self, row_counts: Seq[int], proposal_counts: Seq[int] = (1, 16)) -> None:
        """Capture the graphs of these numbers of rows and of proposals before the first request needs them."""
        adapters = (False, True) if self.model.canvas is not None else (False,)
        variants = (GraphVariant(), GraphVariant(is_single=True), GraphVariant(has_prompt=True))
        forwards = [
            (count, is_gated, variant)
            for count in sorted({bucket_of(count) for count in row_counts})
            for variant in (variants if self.network.is_layer_fused(count) else variants[:1])
            for is_gated in adapters
        ]
        if self.adapters is not None:
            buckets = sorted({bucket_of(count) for count in row_counts})
            forwards += [(count, is_gated, self._adapter_variant(count)) for count in buckets for is_gated in adapters]
        for key in counted("preparing forwards", forwards):
            self.graph(key, partial(self.run_network, *key))
        counts = sorted({bucket_of(count) for count in proposal_counts})
        heads = list(product(counts, UNMASKED_OPTIONS + MASKED_OPTIONS))
        for count, options in counted("preparing heads", heads):
            self.head_graph(count, options)

    def forward_ms(self) -> dict[tuple[int, bool], float]:
        """Times of the graphs captured so far, by rows and by whether canvas rows use the adapter, including the head
        for the same number of proposals. Call it while no request holds pages: replays write into the cache."""
        greedy = SamplingOptions()
        heads = {
            key[1]: time_replay(run) for key, run in self._replays.items() if key[0] == "head" and key[2] == greedy
        }
        forwards = {key: run for key, run in self._replays.items() if key[2] == GraphVariant()}
        for key in forwards:
            self.row_buffers(int(str(key[0])))[0].mark_used(self.model.config.vocab_size)
        bodies = {key[:2]: time_replay(run) for key, run in forwards.items()}
        times = {(int(str(n)), bool(g)): ms + heads[n] for (n, g), ms in bodies.items() if n in heads}
        if self.model.canvas is None and self.model.config.dialect.mask_id is not None:
            times |= {(n, True): ms for (n, _), ms in times.items()}  # masks are tokens, without an adapter
        return times

    def launch(self, batch: Batch) -> Tensor:
        """Queue the forward of a batch -> the residual stream of its rows."""
        if len(batch.token_ids) > len(self._x):
            return self._launch_prompts(batch)
        key = self.key_of(batch)
        count, _, variant = key
        buffers, workspace = self.row_buffers(count, variant.has_prompt)
        self._sent.wait()
        buffers.fill(batch, self.network.attention_shape(count).tile_rows)
        self._sent.record()
        if self.adapters is not None and variant.has_adapters:
            self.adapters.fill(batch.row_adapters, count)
        self.replay(key, lambda: self.run_network(*key))
        return workspace.x

    def _launch_prompts(self, batch: Batch) -> Tensor:
        """A forward with more rows than a graph has: its kernels run longer than their launches take. The proposing
        rows are copied to where the head graphs read."""
        count = -(-len(batch.token_ids) // PROMPT_ROW_STEP) * PROMPT_ROW_STEP
        tile_rows = self.network.attention_shape(count).tile_rows
        if count not in self._prompt_rows:
            num_tiles = -(-count // tile_rows) + self.limits.max_segments
            pages = (self._host_pages, self.pages)
            self._prompt_rows[count] = RowBuffers(count, num_tiles, pages, self.cache.page_size)
        buffers = self._prompt_rows[count]
        self._sent.wait()
        buffers.fill(batch, tile_rows)
        inputs = buffers.inputs
        if self.adapters is not None and batch.row_adapters:
            self.adapters.fill(batch.row_adapters, count)
            inputs = replace(inputs, adapters=self.adapters.rows(count))
        x = self.network.run(inputs, self.network.workspace(count), self._is_gated(batch))
        self._x[: len(batch.proposing)] = x[batch.proposing.to(self.device, non_blocking=True)]
        self._sent.record()
        return x

    def key_of(self, batch: Batch) -> tuple[int, bool, GraphVariant]:
        """The forward graph of a batch: its bucket, whether canvas rows use the adapter, and the variant."""
        count = bucket_of(len(batch.token_ids))
        if batch.row_adapters:
            return count, self._is_gated(batch), self._adapter_variant(count)
        if not self.network.is_layer_fused(count):
            return count, self._is_gated(batch), GraphVariant()
        tile_rows, segments = self.network.attention_shape(count).tile_rows, batch.plan.segments
        num_tiles = sum(-(-(segment.row_end - segment.row_start) // tile_rows) for segment in segments)
        is_single = not batch.has_prompt and num_tiles <= self._single_tiles(count)
        return count, self._is_gated(batch), GraphVariant(batch.has_prompt, is_single)

    def _adapter_variant(self, count: int) -> GraphVariant:
        return GraphVariant(has_prompt=self.network.is_layer_fused(count), has_adapters=True)

    def _is_gated(self, batch: Batch) -> bool:
        """Diffusion checkpoints have canvas rows and no canvas adapter."""
        return batch.has_canvas and self.model.canvas is not None

    def run_network(self, count: int, is_gated: bool, variant: GraphVariant) -> None:
        """The work of a forward graph."""
        buffers, workspace = self.row_buffers(count, variant.has_prompt)
        inputs = buffers.first_tiles(self._single_tiles(count)) if variant.is_single else buffers.inputs
        if self.adapters is not None and variant.has_adapters:
            inputs = replace(inputs, adapters=self.adapters.rows(count))
        self.network.run(inputs, workspace, is_gated)

    def run_head(self, head: HeadBuffers, options: SamplingOptions) -> None:
        """The work of a head graph."""
        weights = self.network.weights
        propose_rows(self._x, weights.norm, weights.head, head.rows(options), head.workspace)

    def row_buffers(self, count: int, has_prompt: bool = False) -> tuple[RowBuffers, Workspace]:
        """`has_prompt` may be set only where it selects another variant."""
        if (count, has_prompt) not in self._rows:
            tile_rows = self.network.attention_shape(count).tile_rows
            num_tiles = -(-count // tile_rows) + min(count, self.limits.max_segments)
            buffers = RowBuffers(count, num_tiles, (self._host_pages, self.pages), self.cache.page_size)
            workspace = self.network.workspace(count, has_prompt).with_x(self._x)
            self._rows[count, has_prompt] = (buffers, workspace)
        return self._rows[count, has_prompt]

    def head_buffers(self, count: int) -> HeadBuffers:
        if count not in self._heads:
            head, bits = self.network.weights.head.w, self._bitmasks.bits[:count]
            self._heads[count] = HeadBuffers(count, head, self.network.input_dtype, bits)
        return self._heads[count]

    def head_graph(self, count: int, options: SamplingOptions) -> Callable[[], None]:
        head = self.head_buffers(count)
        return self.graph(("head", count, options), lambda: self.run_head(head, options))

    def replay(self, key: tuple[object, ...], work: Callable[[], None]) -> None:
        self.graph(key, work)()

    def graph(self, key: tuple[object, ...], work: Callable[[], None]) -> Callable[[], None]:
        """The replay of `key`, captured from `work` at first use."""
        if key not in self._replays:
            self._replays[key] = capture(work, self.device, self.pool)
        return self._replays[key]

    def _split_heads(self, batch: Batch, works: Seq[Work], is_rare: Seq[bool], x: Tensor) -> list[Outcome | None]:
        """Eager logits for requests with rare sampling options, the fused head for all others."""
        num_proposals = torch.tensor([work.num_proposals for work in works])
        is_rare_row = torch.tensor(is_rare).repeat_interleave(num_proposals)
        rows = batch.proposing[is_rare_row]
        rare = list(compress(works, is_rare))
        fused = list(compress(works, (not one for one in is_rare)))
        # The eager path may raise, so it runs before the head's copies are queued.
        eager_outcomes = iter(self.eager.answer(rare, self.model.norm(x[rows.to(self.device)])))
        fused_outcomes = iter(self._fused_head(batch, (~is_rare_row).nonzero()[:, 0], fused))
        return [next(eager_outcomes if one else fused_outcomes) for one in is_rare]

    def _fused_head(self, batch: Batch, index: Tensor, works: Seq[Work]) -> list[Outcome | None]:
        """`index`: the proposals of `batch` that belong to `works`."""
        proposing, count = [work for work in works if work.num_proposals], bucket_of(len(index))
        if not proposing:
            return [None] * len(works)
        head, options = self.head_buffers(count), options_of(proposing)
        if options.is_masked:
            # Overlaps with the forward. A grammar may raise, so this comes before the head's copies are queued.
            self._bitmasks.write(proposing)
            self._bitmasks.send()
        is_gathered = len(batch.token_ids) > len(self._x)
        head.fill(batch, index, proposing, options, is_gathered)
        self.replay(("head", count, options), lambda: self.run_head(head, options))
        head.send_results()
        self.before_wait()
        return split_proposals(works, head.read(len(index)))

    def _holds(self, batch: Batch) -> bool:
        rows_fit = len(batch.token_ids) <= max(len(self._x), self.limits.prompt_rows)
        heads_fit = len(batch.proposing) <= len(self._x)
        return rows_fit and heads_fit and len(batch.plan.segments) <= len(self.pages)

    def _single_tiles(self, count: int) -> int:
        """Attention tiles of a bucket whose rows all belong to one sequence."""
        return -(-count // self.network.attention_shape(count).tile_rows)
