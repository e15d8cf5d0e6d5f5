"""The Runner for the machine at hand: graphs and rounds on CUDA where the kernels can run the model, plain torch else.

The only place that imports the kernels, and only when there is a GPU to run them on.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.util import find_spec

import torch

from quicksilver.engine.config import EngineConfig
from quicksilver.engine.runner import Runner
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer

log = logging.getLogger(__name__)

SPARE_PAGES = 8
"""Held by a request beyond its next forward on a GPU: room for the rounds in flight."""
_CANVAS_LENS = (1, 8, 16)


def make_runner(model: Transformer, cache: PagedCache, config: EngineConfig, context_len: int) -> Runner:
    """Captures its graphs before it returns; the first start on a machine also compiles the kernels."""
    reason = "switched off" if not config.cuda_graphs else _refusal(model, cache)
    if reason is not None:
        if cache.k.is_cuda:
            log.warning("running without CUDA graphs: %s", reason)
        return _plain_runner(model, cache, config)
    from quicksilver.engine.graphs import GraphLimits
    from quicksilver.engine.rounds import RoundRunner, RoundShape

    limits = GraphLimits(config.max_rows, config.max_running, context_len, config.gpu_weights)
    runner = RoundRunner(model, cache, config.logit_rows, limits)
    runner.prepare(_buckets(config.max_rows), _buckets(min(config.max_rows, 64)))
    canvas_lens = [n for n in _CANVAS_LENS if n == 1 or model.canvas is not None]
    runner.prepare_rounds([RoundShape(1, canvas_len) for canvas_len in canvas_lens])
    return runner


def _plain_runner(model: Transformer, cache: PagedCache, config: EngineConfig) -> Runner:
    """On a CPU with packed int8 weights the compiled loops, else torch."""
    if not model.is_native:
        return Runner(model, cache, config.logit_rows)
    from quicksilver.engine.native import NativeRunner

    return NativeRunner(model, cache, config.logit_rows)


def with_spare_pages(config: EngineConfig, device: torch.device) -> EngineConfig:
    """On a GPU requests hold some pages ahead, unless the operator said how many."""
    if device.type != "cuda" or config.spare_pages:
        return config
    return replace(config, spare_pages=SPARE_PAGES)


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
    from quicksilver.model.kernels.weights import refusal

    return refusal(model)
