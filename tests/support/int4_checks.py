"""Checks of int4 weights against their dequantised values, and of quantised weights in the layer-fused kernel. No
pytest here: see `kernel_checks`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from quicksilver.backends.batch import Batch
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.int4_dequantise import dequantise_weight
from quicksilver.backends.cuda.kernels.int4_packing import quantise_to_words
from quicksilver.backends.cuda.kernels.linears import Weight
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.formats.int4 import GROUP_LEN, quantise_int4
from quicksilver.model.transformer import Transformer
from tests.support.fp8_checks import with_fp8_weights
from tests.support.graph_checks import CLUSTERED, LAYER_FUSED, SMALL, WIDE, causal_batch, eager_forward, model_of
from tests.support.int4_words import dequantise_int4
from tests.support.kernel_checks import expect_close, here


def round_trip(w: Tensor) -> Tensor:
    """Quantised to int4 and back."""
    return dequantise_int4(*quantise_int4(w, GROUP_LEN))


def check_dequantise(outputs: int, depth: int) -> None:
    """The dequantise kernel equals the reference."""
    torch.manual_seed(0)
    place = here()
    w = torch.randn(outputs, depth, device=place.device) / depth**0.5
    words, groups, scale = quantise_to_words(w)
    weight = Weight(words, None, scale, groups)
    assert (weight.depth, weight.bits, weight.num_bytes) == (depth, 4, outputs * depth * 5 // 8)
    expect_close(dequantise_weight(weight, place.dtype), round_trip(w), 5e-3 if place.dtype is torch.bfloat16 else 1e-3)


def with_int4_weights(model: Transformer) -> Transformer:
    """The same network in fp32 with dequantised int4 weights."""
    found = copy.deepcopy(model).float()
    for layer in found.layers:
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
            linear.weight.data = round_trip(linear.weight)  # type: ignore[union-attr]
    return found


ORACLES: dict[str, Callable[[Transformer], Transformer]] = {"int4": with_int4_weights, "fp8": with_fp8_weights}


def masked(batch: Batch) -> Batch:
    """The batch with a canvas at the end of every segment of five rows."""
    is_canvas = torch.arange(len(batch.token_ids)) % 5 > 2
    plan = replace(batch.plan, is_canvas=is_canvas)
    return replace(batch, mask_index=torch.where(is_canvas, 1, -1), plan=plan, has_canvas=True)


def check_quantised(scheme: str, config: ModelConfig, num_segments: int, has_canvas: bool | None) -> None:
    """A forward on quantised weights equals the eager network with the dequantised weights. `has_canvas` None is
    without an adapter."""
    model, place = model_of(config, has_adapter=has_canvas is not None), here()
    batch = causal_batch(num_segments, 5, 20, 16)
    batch = masked(batch) if has_canvas else batch
    cache = PagedCache.allocate(config, 2 * num_segments, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    before = PagedCache(cache.k.clone().float(), cache.v.clone().float(), 16)
    limits = GraphLimits(max_rows=256, max_segments=64, context_len=256, scheme=scheme)
    runner = GraphExecutor(model, cache, 64, limits)
    is_fused = place.device == "cuda" and config in (LAYER_FUSED, CLUSTERED)
    assert runner.network.is_layer_fused(16) == is_fused
    assert runner.network.is_layer_fused(64) == (is_fused and scheme == "int4"), "two launches of 32 rows"
    found = model.norm(runner.launch(batch)[: len(batch.token_ids)])
    expect_close(found, eager_forward(ORACLES[scheme](model), batch, before), 4e-2 if is_bf16(found) else 5e-3)


def is_bf16(x: Tensor) -> bool:
    return x.dtype is torch.bfloat16


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    yield "int4 dequantise", lambda: check_dequantise(1536, 8960)
    for config in (SMALL, WIDE):
        for count, has_canvas in ((3, False), (3, True), (10, True), (30, False), (30, True)):
            name = f"network int4 {config.family} rows={5 * count} canvas={has_canvas}"
            yield name, lambda c=config, n=count, h=has_canvas: check_quantised("int4", c, n, h)
    for scheme, kind, config in (
        (scheme, kind, config)
        for scheme in ORACLES
        for kind, config in (("fused", LAYER_FUSED), ("cluster", CLUSTERED))
    ):
        counts = ((3, None), (6, None), (3, True), (6, True)) + (((10, None), (11, True)) if scheme == "int4" else ())
        for count, has_canvas in counts:
            name = f"network {scheme} {kind} rows={5 * count} canvas={has_canvas}"
            yield name, lambda s=scheme, c=config, n=count, h=has_canvas: check_quantised(s, c, n, h)
