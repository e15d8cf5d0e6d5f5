"""Shared parts of the GPU benchmarks: model shapes, random weights, synthetic batches, switches, timing, dated JSON.

Needs torch and Triton only. Speed does not depend on the values of weights; tokens per round do. Every figure states
which of the two it is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from quicksilver.backends.batch import Batch
from quicksilver.backends.config import MAX_TREE_ROWS
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels import (
    layer_fused,
    layer_fused_shape,
    network,
    weight_streaming,
)
from quicksilver.engine.config import EngineConfig
from quicksilver.model.assemble import empty_transformer, finish, set_parameter
from quicksilver.model.attention import PagedCache, RowPlan, Segment
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.canvas_adapters import new_canvas

DEVICE = "cuda"
_RING_BYTES, _STAGE_BYTES = layer_fused_shape.MAX_RING_BYTES, layer_fused_shape.STAGE_BYTES
_gpu = layer_fused._gpu
# Switches and their defaults; see `apply_switches`.
DEFAULTS = {
    "pdl_bytes": network.PDL_MAX_BYTES, "fp8_block_k": weight_streaming.FP8_BLOCK_K,
    "layer_fused": int(network.USE_LAYER_FUSED), "ring_kb": 0, "stage_bytes": 0, "ctas": 0,
}  # fmt: skip
PAGE_SIZE = 16
SHAPES = {
    "135M": ModelConfig("llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, rope_theta=1e5, tied_head=True),
    "1.5B": ModelConfig(
        "qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, rope_theta=1e6, qkv_bias=True, tied_head=True
    ),
    "4B": ModelConfig("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 32768, rope_theta=1e6, qk_norm=True, tied_head=True),
    "8B": ModelConfig("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 131072, rope_theta=1e6, qk_norm=True),
}


def apply_switches(text: str) -> dict[str, int]:
    """Sets switches from text like `layer_fused=0,pdl_bytes=0`; switches that are not named get their defaults.

    `layer_fused=0` runs six launches per layer. Its settings are `ring_kb` (size of the ring buffer), `stage_bytes` (of
    one warp) and `ctas` (fewer CTAs than SMs, so that a sanitizer finishes).
    `pdl_bytes` is the weight size of the largest model that uses PDL, `fp8_block_k` the k-block of the fp8 path."""
    chosen = DEFAULTS | {k: int(v) for k, v in (word.split("=") for word in text.split(",") if word)}
    network.USE_LAYER_FUSED = bool(chosen["layer_fused"])
    network.PDL_MAX_BYTES, weight_streaming.FP8_BLOCK_K = chosen["pdl_bytes"], chosen["fp8_block_k"]
    ring, stage = chosen["ring_kb"] << 10, chosen["stage_bytes"]
    layer_fused_shape.MAX_RING_BYTES = dict.fromkeys(_RING_BYTES, ring) if ring else _RING_BYTES
    layer_fused_shape.STAGE_BYTES = dict.fromkeys(_STAGE_BYTES, stage) if stage else _STAGE_BYTES
    layer_fused._gpu = _gpu_with(chosen["ctas"]) if chosen["ctas"] else _gpu
    return chosen


def _gpu_with(num_ctas: int) -> Callable[[torch.device], layer_fused_shape.GpuProperties]:
    return lambda device: replace(_gpu(device), num_ctas=num_ctas)


def random_model(config: ModelConfig, rank: int = 0, dtype: torch.dtype = torch.bfloat16) -> Transformer:
    """Random weights, created on the GPU, with a random canvas adapter if `rank` is not 0."""
    torch.manual_seed(0)
    model = empty_transformer(config)
    for name, parameter in list(model.named_parameters()):
        tensor = torch.empty(parameter.shape, device=DEVICE, dtype=dtype)
        tensor = tensor.fill_(1.0) if parameter.dim() == 1 and "norm" in name else tensor.normal_(std=0.02)
        set_parameter(model, name, tensor)
    model = finish(model, DEVICE)
    if rank:
        adapter = new_canvas(config, rank, 256, 0)
        for parameter in adapter.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        # As adapters.attach_canvas, which imports safetensors.
        model.canvas = adapter.to(device=model.device, dtype=model.dtype)
    return model.requires_grad_(False)


def make_executor(model: Transformer, num_pages: int, limits: GraphLimits) -> GraphExecutor:
    """A graph executor with a KV cache of random values."""
    cache = PagedCache.allocate(model.config, num_pages, PAGE_SIZE, DEVICE, model.dtype, 2 * MAX_TREE_ROWS)
    for tensor in (cache.k, cache.v):
        for layer in tensor:
            layer.normal_()
    return GraphExecutor(model, cache, EngineConfig().logit_rows, limits)


def make_backend(model: Transformer, num_pages: int, limits: GraphLimits) -> CudaBackend:
    return CudaBackend(make_executor(model, num_pages, limits))


def synthetic_batch(num_segments: int, rows_each: int, past: int, num_canvas: int = 0) -> Batch:
    """Segments of causal rows after `past` cached tokens; the last `num_canvas` rows of each are a canvas of masks."""
    columns: dict[str, list[int]] = {name: [] for name in ("position", "slot", "canvas", "prefix", "start", "end")}
    index, segments = list[int](), []
    context = rows_each - num_canvas
    num_pages = -(-(past + rows_each) // PAGE_SIZE)
    for s in range(num_segments):
        first, end = s * rows_each, past + context
        for row in range(rows_each):
            is_canvas = row >= context
            position = past + row
            slot = -1 if is_canvas else s * num_pages * PAGE_SIZE + position
            span = (first + context, first + rows_each) if is_canvas else (0, 0)
            values = (position, slot, int(is_canvas), end if is_canvas else position + 1, *span)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
            index.append(row - context if is_canvas else -1)
        pages = torch.arange(s * num_pages, (s + 1) * num_pages)
        segments.append(Segment(first, first + rows_each, pages))
    t = {name: torch.tensor(values) for name, values in columns.items()}
    plan = RowPlan(t["position"], t["slot"], t["canvas"].bool(), t["prefix"], t["start"], t["end"], segments)
    rows = num_segments * rows_each
    return Batch(torch.arange(rows) % 1000, torch.tensor(index), plan, torch.arange(rows), num_canvas > 0)


def pages_for(num_segments: int, tokens_each: int) -> int:
    return num_segments * -(-tokens_each // PAGE_SIZE) + 16


def forward_options(about: str | None, models: str, rows: str) -> argparse.ArgumentParser:
    """Options of the benchmarks of single forwards."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", required=True, help="folder of the report")
    parser.add_argument("--models", default=models, help=f"comma-separated: {', '.join(SHAPES)}")
    parser.add_argument("--rows", default=rows, help="comma-separated")
    parser.add_argument("--weights", default="bfloat16", help="comma-separated: bfloat16, fp8, int4")
    parser.add_argument("--past", type=int, default=512, help="cached tokens before the rows")
    return parser


def time_ms(work: Callable[[], Any], repeats: int = 20, warm_up: int = 3) -> float:
    """Median device time of one call in milliseconds."""
    for _ in range(warm_up):
        work()
    pairs = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) for start, end in pairs)
    return times[len(times) // 2]


def copy_bandwidth() -> float:
    """Bytes per second of a large copy on the device, reads and writes both counted."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device=DEVICE).random_(0, 255)
    target = torch.empty_like(source)
    return 2 * source.numel() / (time_ms(lambda: target.copy_(source), 10) / 1e3)


def matmul_rate() -> float:
    """FLOP/s of a large bf16 matmul on random data."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / (time_ms(lambda: a @ b, 10) / 1e3)


def write_report(out: str, name: str, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write a dated JSON report with hardware, versions and commit, and print the table."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    report = {
        "benchmark": name,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": commit or "unknown",
        "settings": settings,
        "rows": rows,
    }
    Path(out).mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    (Path(out) / f"{name}-{stamp}.json").write_text(json.dumps(report, indent=1))
    print(f"\n== {name} on {report['hardware']}: {settings}")
    for row in rows:
        print("  " + "  ".join(f"{key} {_short(value)}" for key, value in row.items()), flush=True)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
