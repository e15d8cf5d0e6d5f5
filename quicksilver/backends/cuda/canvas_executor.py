"""The CUDA backend of random canvases (DiffusionGemma): a graph replay per forward, then the head.

Forwards up to `max_rows` are graphs, one per multiple of `ROW_STEP` rows; larger ones, of prompts, launch their kernels
one by one. The head and the soft embeddings are few large launches, which the host queues while the body runs. Tokens
and entropies are sent to the host before the soft embeddings are computed, so the host decides and plans the next
forward meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from itertools import compress

import torch
from torch import Tensor

from quicksilver.backends.base import AdapterStore, Outcome, PersistentBatch, Work
from quicksilver.backends.batch import Batch, build_batch
from quicksilver.backends.cuda.buffers import GraphLimits, RowBuffers, StreamMarker, uses_pinned_memory
from quicksilver.backends.cuda.canvas_rows import CanvasRows, fits_canvas_head
from quicksilver.backends.cuda.capture import capture
from quicksilver.backends.cuda.kernels.canvas_head import propose_canvas, raw_logits, soft_embeddings
from quicksilver.backends.cuda.kernels.gemma_network import GemmaNetwork
from quicksilver.backends.cuda.kernels.gemma_weights import collect
from quicksilver.backends.cuda.kernels.window_attention import TILE_ROWS
from quicksilver.backends.progress import counted
from quicksilver.backends.round_cost import RoundCost
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.errors import InvalidRequest, RowFailed
from quicksilver.model.attention import PagedCache
from quicksilver.model.gemma import DiffusionGemma, GemmaRope
from quicksilver.model.lowrank import Adapter
from quicksilver.model.row_adapters import RowAdapter

# Row counts of graphs are multiples of it: the length of the published canvas.
ROW_STEP = 256
# Rows of logits that exist at the same time.
LOGIT_ROWS = 2048


class CanvasExecutor:
    """Runs batches of `CanvasDecoder` requests and of scoring requests."""

    round_cost: RoundCost | None = None
    persistent: PersistentBatch | None = None
    # The kernels cannot apply row adapters.
    supports_adapters = False
    adapter_store: AdapterStore | None = None

    def __init__(
        self, model: DiffusionGemma, cache: PagedCache, logit_rows: int, limits: GraphLimits, row_step: int = ROW_STEP
    ) -> None:
        # Serves requests with rare sampling options from the hidden states, and batches that exceed the buffers.
        self.eager = TorchBackend(model, cache, logit_rows)
        self.model, self.cache, self.limits, self.device = model, cache, limits, cache.k.device
        assert isinstance(model.rope, GemmaRope)
        self.network = GemmaNetwork(model.config, collect(model, limits.scheme), cache, model.rope)
        self.has_matrices = limits.scheme == "bfloat16"
        self.row_step = row_step
        self.max_rows = -(-limits.max_rows // row_step) * row_step
        shape = (self.max_rows, model.config.dim)
        self._soft = torch.zeros(shape, device=self.device, dtype=model.dtype)
        self._hidden = torch.zeros(shape, device=self.device, dtype=model.dtype)
        max_pages = -(-limits.context_len // cache.page_size) + 1
        self._host_pages = torch.zeros(
            limits.max_segments, max_pages, dtype=torch.int32, pin_memory=uses_pinned_memory()
        )
        self._pages = self._host_pages.to(self.device)
        self._draws = CanvasRows(LOGIT_ROWS, self.device)
        self._sent = StreamMarker(self.device)
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._rows: dict[int, RowBuffers] = {}
        self._replays: dict[int, Callable[[], None]] = {}

    def prepare(self) -> None:
        """Capture all graphs before the first request needs them."""
        for count in counted("preparing forwards", range(self.row_step, self.max_rows + 1, self.row_step)):
            self._graph(count)

    def convert_adapter(self, adapter: Adapter) -> RowAdapter:
        raise InvalidRequest("DiffusionGemma cannot apply adapters to single requests", param="model")

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        """One forward; the contract of `Backend.run`."""
        batch = build_batch(works, self.cache.page_size)
        if not self._holds(batch):
            if not self.has_matrices:
                raise RowFailed("the batch exceeds the buffers of the CUDA backend")
            return self.eager.run(works)
        hidden = self.launch(batch, works)
        is_rare = [work.num_proposals > 0 and not fits_canvas_head(work.sequence) for work in works]
        num_proposals = torch.tensor([work.num_proposals for work in works])
        is_rare_row = torch.tensor(is_rare).repeat_interleave(num_proposals)
        rare, fused = list(compress(works, is_rare)), list(compress(works, (not one for one in is_rare)))
        # The eager path may raise, so it comes first.
        rows = batch.proposing[is_rare_row].to(self.device)
        eager_outcomes = iter(self.eager.answer(rare, hidden[rows]) if rare else ())
        fused_outcomes = iter(self._propose(hidden, batch.proposing[~is_rare_row], fused))
        return [next(eager_outcomes if one else fused_outcomes) for one in is_rare]

    def launch(self, batch: Batch, works: Seq[Work]) -> Tensor:
        """Queue the forward of a batch -> the hidden states of its rows after the final norm."""
        count = -(-len(batch.token_ids) // self.row_step) * self.row_step
        segments = batch.plan.segments
        num_tiles = sum(-(-(segment.row_end - segment.row_start) // TILE_ROWS) for segment in segments)
        is_graph = count <= self.max_rows and num_tiles <= self._graph_tiles(count)
        buffers = self._row_buffers(count)
        self._sent.wait()
        buffers.fill(batch, TILE_ROWS)
        self._sent.record()
        soft = self._fill_soft(batch, works, count)
        if is_graph:
            self._graph(count)()
            return self._hidden[:count]
        return self.network.run(buffers.first_tiles(num_tiles), soft if batch.has_canvas else None)

    def _fill_soft(self, batch: Batch, works: Seq[Work], count: int) -> Tensor:
        """(rows, dim): the soft embeddings of all canvas rows. Those of other rows are any values."""
        soft = self._soft[:count] if count <= self.max_rows else self._soft.new_zeros(count, self._soft.shape[1])
        for work, segment in zip(works, batch.plan.segments, strict=True):
            if work.tail is not None and work.tail.token_ids:
                target = soft[segment.row_end - len(work.tail.token_ids) : segment.row_end]
                target.zero_() if work.tail.soft is None else target.copy_(work.tail.soft)
        return soft

    def _propose(self, hidden: Tensor, proposing: Tensor, works: Seq[Work]) -> list[Outcome | None]:
        """The outcomes of `works`, whose proposing rows are `proposing`."""
        outcomes: list[Outcome | None] = []
        tile, num_rows = list[Work](), 0
        for work in works:
            if num_rows + work.num_proposals > LOGIT_ROWS:
                outcomes += self._propose_tile(hidden, proposing[:num_rows], tile)
                proposing, tile, num_rows = proposing[num_rows:], [], 0
            tile.append(work)
            num_rows += work.num_proposals
        return outcomes + self._propose_tile(hidden, proposing, tile)

    def _propose_tile(self, hidden: Tensor, proposing: Tensor, works: Seq[Work]) -> list[Outcome | None]:
        if not len(proposing):
            return [None] * len(works)
        weights, gemma = self.network.weights, self.model.config.gemma
        assert gemma is not None
        rows = self._draws.fill(proposing, works)
        raw = raw_logits(hidden[rows.index], weights.head)
        for at, banned in rows.bans:
            raw[at].index_fill_(1, banned, -torch.inf)
        logits = propose_canvas(raw, gemma.logit_softcap, rows.draws, rows.results)
        self._draws.send_results(len(proposing))
        soft = None
        if not all(_is_last_step(work) for work in works if work.num_proposals):
            soft = soft_embeddings(logits, weights.tokens, weights.embed_scale)
        return self._draws.read(works, soft)

    def _graph_tiles(self, count: int) -> int:
        """Attention tiles of a graph: those of its rows, and one more for each canvas."""
        return -(-count // TILE_ROWS) + 2 * (count // self.row_step)

    def _row_buffers(self, count: int) -> RowBuffers:
        if count not in self._rows:
            num_tiles = -(-count // TILE_ROWS) + max(self.limits.max_segments, 2 * (count // self.row_step))
            self._rows[count] = RowBuffers(count, num_tiles, (self._host_pages, self._pages), self.cache.page_size)
        return self._rows[count]

    def _graph(self, count: int) -> Callable[[], None]:
        if count not in self._replays:
            self._replays[count] = capture(partial(self._run_network, count), self.device, self.pool)
        return self._replays[count]

    def _run_network(self, count: int) -> None:
        """The work of a graph."""
        inputs = self._row_buffers(count).first_tiles(self._graph_tiles(count))
        self._hidden[:count] = self.network.run(inputs, self._soft[:count])

    def _holds(self, batch: Batch) -> bool:
        rows_fit = len(batch.token_ids) <= max(self.max_rows, self.limits.prompt_rows)
        return rows_fit and len(batch.plan.segments) <= len(self._pages)


def _is_last_step(work: Work) -> bool:
    """Whether the canvas ends after this forward, so that no step needs its soft embeddings. A grammar may continue
    it."""
    sequence = work.sequence
    assert sequence.canvas is not None
    return sequence.constraint is None and sequence.canvas.step + 1 >= sequence.request.params.decoder.steps
