"""The Runner for the machine at hand: graphs and rounds on CUDA where the kernels can run the model, plain torch else.

The only place that imports the kernels, and only when there is a GPU to run them on.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.util import find_spec

import torch

from quicksilver.backends.torch.backend import Runner
from quicksilver.engine.config import MAX_TREE_ROWS, EngineConfig
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer

log = logging.getLogger(__name__)

SPARE_PAGES = 8
"""Held by a request beyond its next forward on a GPU: room for the rounds in flight."""
CANVAS_ROWS = 512
"""Beyond the rows that any canvases are worth, whatever a round would yield."""
ONE_FORWARD_LEN = 8
"""Verify rows and their sets make 64 rows: as many as the linears for few rows take."""
TREE_ROWS, SMALL_TREE_ROWS = 32, 16
"""Of a lone canvas of 16: 32 rows cost little more than 16, unless the network is small. Canvases of two to four
requests keep to the 16 rows that they have without a tree."""


def make_runner(model: Transformer, cache: PagedCache, config: EngineConfig, context_len: int) -> Runner:
    """Captures its graphs before it returns; the first start on a machine also compiles the kernels."""
    reason = "switched off" if not config.cuda_graphs else _refusal(model, cache)
    if reason is not None:
        if cache.k.is_cuda:
            log.warning("running without CUDA graphs: %s", reason)
        return _plain_runner(model, cache, config)
    from quicksilver.backends.cuda.graphs import GraphLimits
    from quicksilver.backends.cuda.kernels.network import Product
    from quicksilver.backends.cuda.rounds import RoundRunner, RoundShape, one_forward

    product = Product(config.gpu_products)
    limits = GraphLimits(config.max_rows, config.max_running, context_len, config.gpu_weights, product)
    runner = RoundRunner(model, cache, config.logit_rows, limits)
    runner.prepare(_buckets(config.max_rows), _buckets(config.max_rows))
    shapes = [RoundShape(1, 1)]
    if model.canvas is not None:
        usual = SMALL_TREE_ROWS if runner.network.is_small else TREE_ROWS
        rows = config.tree_rows if config.tree_rows >= 0 else usual
        shapes += [RoundShape(1, 16, tree_rows=rows), *(RoundShape(n, 16, tree_rows=min(rows, 16)) for n in (2, 4))]
        lone = config.one_forward_len if config.one_forward_len >= 0 else ONE_FORWARD_LEN
        # All forwards of a round must have the kernels that autoregression has, or the last bits differ.
        is_alike = not runner.network.is_between(16) or runner.network.is_between(one_forward(1, lone).num_proposals)
        shapes += [one_forward(1, lone)] if lone and is_alike else [RoundShape(1, 8)]
    runner.prepare_rounds(shapes)
    runner.measure()
    return runner


def scratch_slots(config: EngineConfig, device: torch.device) -> int:
    """KV slots that rounds need beyond the pages: those of four trees of 16 rows, or of one of the largest."""
    return max(4 * 16, MAX_TREE_ROWS) if device.type == "cuda" and config.cuda_graphs else 0


def _plain_runner(model: Transformer, cache: PagedCache, config: EngineConfig) -> Runner:
    """On a CPU with packed int8 weights the compiled loops, else torch."""
    if model.is_native:
        from quicksilver.backends.cpu.backend import NativeRunner, fits

        if fits(model):
            return NativeRunner(model, cache, config.logit_rows)
    return Runner(model, cache, config.logit_rows)


def with_gpu_defaults(config: EngineConfig, device: torch.device) -> EngineConfig:
    """What a GPU wants where the operator said nothing: pages ahead, and a bound on the rows of all canvases."""
    if device.type != "cuda" or not config.cuda_graphs:
        return config
    return replace(
        config,
        spare_pages=config.spare_pages or SPARE_PAGES,
        canvas_rows=config.canvas_rows or CANVAS_ROWS,
    )


def _buckets(largest: int) -> list[int]:
    counts = [16]
    while counts[-1] < largest:
        counts.append(2 * counts[-1])
    return counts


def _refusal(model: Transformer, cache: PagedCache) -> str | None:
    """Why the plain path must do; None if the kernels can run here."""
    if not cache.k.is_cuda:
        return "no GPU"
    if find_spec("triton") is None:
        return "Triton is not installed"
    from quicksilver.backends.cuda.kernels.weights import refusal

    return refusal(model)
