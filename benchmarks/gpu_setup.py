"""What the GPU benchmarks share: model shapes, random weights made on the device, made-up batches, timing, dated JSON.

Needs torch and Triton only. Speed does not depend on the values of weights, tokens a round does; every figure says
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
from quicksilver.backends.cuda.graphs import GraphLimits
from quicksilver.backends.cuda.kernels import (
    layer_fused,
    layer_fused_shape,
    network,
    persistent_weights,
    weight_streaming,
)
from quicksilver.backends.cuda.rounds import RoundRunner
from quicksilver.engine.config import MAX_TREE_ROWS, EngineConfig
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.assemble import empty_transformer, finish, place
from quicksilver.model.attention import PagedCache, RowPlan, Segment
from quicksilver.model.config import ModelConfig
from quicksilver.model.lowrank import new_canvas
from quicksilver.model.transformer import Transformer

DEVICE = "cuda"
SHIPPED = {
    "shared": persistent_weights.SHARED_ROWS, "warps": persistent_weights.WARPS,
    "stages": persistent_weights.STAGES, "share": 0,
    "used": int(persistent_weights.COUNTS_USED), "splits": persistent_weights.WHOLE_SPLITS,
    "overlap": network.OVERLAP_BYTES, "depth": weight_streaming.ROUNDED_DEPTH,
    "between": int(network.BETWEEN), "ring": 0, "piece": 0, "programs": 0,
}  # fmt: skip
_RINGS, _PIECES = layer_fused_shape.MOST_RING, layer_fused_shape.PIECE_BYTES
_programs_for, _chip = persistent_weights.programs_for, layer_fused._chip
PAGE_SIZE = 16
SHAPES = {
    "135M": ModelConfig("llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, rope_theta=1e5, tied_head=True),
    "1.5B": ModelConfig(
        "qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, rope_theta=1e6, qkv_bias=True, tied_head=True
    ),
    "4B": ModelConfig("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 32768, rope_theta=1e6, qk_norm=True, tied_head=True),
    "8B": ModelConfig("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 131072, rope_theta=1e6, qk_norm=True),
}


def switch_whole(text: str) -> dict[str, int]:
    """Sets ways to run, from words like `shared=16,stages=6`; whatever is not named is as shipped.

    Small networks in one launch: `shared`, `warps`, `stages` as in `persistent_weights.py`; `share` programs an SM;
    `used=1`: only tiles with rows are shared out in attention; `splits` programs share a head's keys.
    Larger ones: `overlap` bytes of the largest model whose launches overlap; `depth` of fp8 by fp8 that is read at
    once; `between=0`: six launches a layer; KB of its `ring` at most, bytes of a warp's `piece`, as many `programs` as
    that instead of one a multiprocessor, so that a sanitizer comes to its end."""
    chosen = dict(SHIPPED) | {k: int(v) for k, v in (word.split("=") for word in text.split(",") if word)}
    persistent_weights.SHARED_ROWS, persistent_weights.WARPS = chosen["shared"], chosen["warps"]
    persistent_weights.STAGES, network.OVERLAP_BYTES = chosen["stages"], chosen["overlap"]
    persistent_weights.COUNTS_USED, weight_streaming.ROUNDED_DEPTH = bool(chosen["used"]), chosen["depth"]
    persistent_weights.WHOLE_SPLITS = chosen["splits"]
    network.BETWEEN = bool(chosen["between"])
    layer_fused_shape.MOST_RING = dict.fromkeys(_RINGS, chosen["ring"] << 10) if chosen["ring"] else _RINGS
    layer_fused_shape.PIECE_BYTES = dict.fromkeys(_PIECES, chosen["piece"]) if chosen["piece"] else _PIECES
    layer_fused._chip = _chip_with(chosen["programs"]) if chosen["programs"] else _chip
    if chosen["share"]:
        count = torch.cuda.get_device_properties(0).multi_processor_count
        persistent_weights.programs_for = lambda *_: count * chosen["share"]  # type: ignore[assignment]
    else:
        persistent_weights.programs_for = _programs_for
    return chosen


def _chip_with(num_programs: int) -> Callable[[torch.device], layer_fused_shape.Chip]:
    return lambda device: replace(_chip(device), num_programs=num_programs)


def random_model(config: ModelConfig, rank: int = 0, dtype: torch.dtype = torch.bfloat16) -> Transformer:
    """Random weights born on the GPU, with a random canvas adapter of `rank` where asked."""
    torch.manual_seed(0)
    model = empty_transformer(config)
    for name, parameter in list(model.named_parameters()):
        tensor = torch.empty(parameter.shape, device=DEVICE, dtype=dtype)
        tensor = tensor.fill_(1.0) if parameter.dim() == 1 and "norm" in name else tensor.normal_(std=0.02)
        place(model, name, tensor)
    model = finish(model, DEVICE)
    if rank:
        adapter = new_canvas(config, rank, 256, 0)
        for parameter in adapter.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        attach_canvas(model, adapter)
    return model.requires_grad_(False)


def make_runner(model: Transformer, num_pages: int, limits: GraphLimits) -> RoundRunner:
    cache = PagedCache.allocate(model.config, num_pages, PAGE_SIZE, DEVICE, model.dtype, 2 * MAX_TREE_ROWS)
    for tensor in (cache.k, cache.v):
        for layer in tensor:
            layer.normal_()
    return RoundRunner(model, cache, EngineConfig().logit_rows, limits)


def made_up_batch(num_segments: int, rows_each: int, past: int, num_canvas: int = 0) -> Batch:
    """Segments of causal rows behind `past` cached tokens; the last `num_canvas` rows of each are a canvas of masks."""
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
    """What benchmarks of single forwards are asked for."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default=models)
    parser.add_argument("--rows", default=rows)
    parser.add_argument("--schemes", default="bfloat16", help="bfloat16, fp8, int4, or several with commas")
    parser.add_argument("--past", type=int, default=512, help="cached tokens before the rows")
    return parser


def time_ms(work: Callable[[], Any], repeats: int = 20, warm_up: int = 3) -> float:
    """Median time of one call on the device, by events."""
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
    """Bytes a second of a large copy on the device, read and written both counted."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device=DEVICE).random_(0, 255)
    target = torch.empty_like(source)
    return 2 * source.numel() / (time_ms(lambda: target.copy_(source), 10) / 1e3)


def matmul_rate() -> float:
    """FLOP/s of a large bf16 product on random data."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / (time_ms(lambda: a @ b, 10) / 1e3)


def write_report(out: str, name: str, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Dated JSON with hardware, versions and commit; the table last on the screen."""
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
