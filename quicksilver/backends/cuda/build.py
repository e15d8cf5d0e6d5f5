"""Builds the CUDA backend of a model: kernels, captured graphs and round shapes. Imported only if there is a GPU."""

from __future__ import annotations

from quicksilver.backends.base import BackendConfig
from quicksilver.backends.cuda.graphs import GraphLimits
from quicksilver.backends.cuda.kernels.network import Product
from quicksilver.backends.cuda.rounds import RoundRunner, RoundShape, one_forward
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer

# 8 verify rows + 8 x 7 draft rows = 64 rows, the largest batch of the small-batch kernels.
ONE_FORWARD_LEN = 8
# Rows of a draft tree for one canvas of 16. For a large network 32 rows cost little more than 16.
TREE_ROWS, SMALL_TREE_ROWS = 32, 16


def build_backend(model: Transformer, cache: PagedCache, config: BackendConfig) -> RoundRunner:
    """Captures its graphs before it returns; the first start on a machine also compiles the kernels."""
    product = Product.FASTEST if config.matmul == "fastest" else Product.FIXED
    limits = GraphLimits(config.max_rows, config.max_sequences, config.context_len, config.weights, product)
    backend = RoundRunner(model, cache, config.logit_rows, limits)
    backend.prepare(_buckets(config.max_rows), _buckets(config.max_rows))
    backend.prepare_rounds(_round_shapes(backend, model, config))
    backend.measure()
    return backend


def _round_shapes(backend: RoundRunner, model: Transformer, config: BackendConfig) -> list[RoundShape]:
    shapes = [RoundShape(1, 1)]
    if model.canvas is None:
        return shapes
    default = SMALL_TREE_ROWS if backend.network.is_small else TREE_ROWS
    rows = config.tree_rows if config.tree_rows >= 0 else default
    shapes += [RoundShape(1, 16, tree_rows=rows), *(RoundShape(n, 16, tree_rows=min(rows, 16)) for n in (2, 4))]
    lone = ONE_FORWARD_LEN
    # All forwards of a round must use the kernels that autoregression uses, or the last bits differ.
    is_alike = not backend.network.is_between(16) or backend.network.is_between(one_forward(1, lone).num_proposals)
    return [*shapes, one_forward(1, lone) if is_alike else RoundShape(1, 8)]


def _buckets(largest: int) -> list[int]:
    counts = [16]
    while counts[-1] < largest:
        counts.append(2 * counts[-1])
    return counts
