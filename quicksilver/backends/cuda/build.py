"""Builds the CUDA backend of a model: kernels, captured graphs and round shapes. Imported only if there is a GPU."""

from __future__ import annotations

from quicksilver.backends.config import BackendConfig
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.block_rounds import has_rounds
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.canvas_executor import CanvasExecutor
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.backends.cuda.parallel_compile import compiled_in_threads
from quicksilver.dialect import AUTOREGRESSIVE
from quicksilver.model.attention import PagedCache
from quicksilver.model.gemma import DiffusionGemma
from quicksilver.model.transformer import Transformer

# Rows of a draft tree for one canvas of 16. For a large network 32 rows cost little more than 16.
TREE_ROWS, SMALL_TREE_ROWS = 32, 16


def build_backend(model: Transformer, cache: PagedCache, config: BackendConfig) -> CudaBackend:
    """Captures its graphs before it returns; the first start on a machine also compiles the kernels."""
    mode = MatmulMode(config.matmul)
    limits = GraphLimits(
        config.max_rows, config.max_sequences, config.context_len, config.weights, mode, config.prompt_rows,
        config.adapter_bytes,
    )  # fmt: skip
    executor = GraphExecutor(model, cache, config.logit_rows, limits)
    executor.free_matrices()
    backend = CudaBackend(executor)
    with compiled_in_threads(executor.device, config.compile_threads):
        executor.prepare(_buckets(config.max_rows), _buckets(config.max_rows))
        # Verify rounds are autoregressive. `confidence` in dialects with blocks has rounds of its own, and everything
        # else decodes forward by forward.
        if model.config.dialect == AUTOREGRESSIVE:
            backend.prepare_rounds(round_shapes(config, executor.network.is_small, has_canvas=model.canvas is not None))
            backend.prepare_slots(config.max_sequences)
        if has_rounds(model.config.dialect):
            backend.prepare_blocks(config.max_sequences)
    backend.measure()
    return backend


def build_canvas_backend(model: DiffusionGemma, cache: PagedCache, config: BackendConfig) -> CanvasExecutor:
    """The backend of random canvases. `matmul` has no effect: every sequence's products depend on the batch."""
    limits = GraphLimits(
        config.max_rows, config.max_sequences, config.context_len, config.weights, prompt_rows=config.prompt_rows
    )
    executor = CanvasExecutor(model, cache, config.logit_rows, limits)
    with compiled_in_threads(executor.device, config.compile_threads):
        executor.prepare()
    return executor


def round_shapes(config: BackendConfig, is_small: bool, has_canvas: bool) -> list[RoundShape]:
    """The rounds that are captured: autoregression, canvases of 16 for one, two and four sequences, and of 8 for one.
    `is_small`: the network's own default of tree rows is 16."""
    shapes = [RoundShape(1, 1)]
    if not has_canvas:
        return shapes
    default = SMALL_TREE_ROWS if is_small else TREE_ROWS
    rows = config.tree_rows if config.tree_rows >= 0 else default
    shapes += [RoundShape(1, 16, tree_rows=rows), *(RoundShape(n, 16, tree_rows=min(rows, 16)) for n in (2, 4))]
    return [*shapes, RoundShape(1, 8)]


def _buckets(largest: int) -> list[int]:
    counts = [16]
    while counts[-1] < largest:
        counts.append(2 * counts[-1])
    return counts
