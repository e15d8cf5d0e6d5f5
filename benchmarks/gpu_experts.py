"""Speed of the routed experts of one layer on a GPU, by shape, number of rows, weight format and tiling.

    python -m benchmarks.gpu_experts --out DIR [--shapes llada2-mini,sdar-30b] [--rows 4,32,128,256] [--weights fp8]
    python -m benchmarks.gpu_experts --tiny

Random weights and random rows, so experts are chosen nearly uniformly. A CUDA graph has several calls with rows of
their own, so that weights come from memory and not from the cache of the GPU. The roofline is the time to read the
weights of the chosen experts at the copy bandwidth of the same run. Kernels are compiled by several processes first.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_dialects import copy_bandwidth
from quicksilver.backends.cuda.capture import capture, time_replay
from quicksilver.backends.cuda.kernels import experts as expert_module
from quicksilver.backends.cuda.kernels.expert_kernels import down_kernel, gate_up_kernel
from quicksilver.backends.cuda.kernels.experts import (
    LOW_TILE,
    ExpertTiling,
    ExpertTilings,
    ExpertWeights,
    expert_parts,
    pick_tilings,
    quantise_experts,
    tile_height,
)
from quicksilver.backends.cuda.kernels.linears import Norm, NormInput
from quicksilver.backends.cuda.kernels.router import Router, allocate_router, route_rows
from quicksilver.backends.cuda.kernels.row_kernels import INPUT_SCALE
from quicksilver.backends.cuda.kernels.sparse import SparseWorkspace, add_sparse
from quicksilver.model.experts import MoeConfig

# Width of the network, and its experts.
SHAPES: dict[str, tuple[int, MoeConfig]] = {
    "llada2-mini": (
        2048,
        MoeConfig(256, 8, 512, "sigmoid", has_bias=True, num_groups=8, top_groups=4, scale=2.5, shared_ffn_dim=512),
    ),
    "sdar-30b": (2048, MoeConfig(128, 8, 768)),
    "diffusion-gemma": (2816, MoeConfig(128, 8, 704, activation="gelu_tanh")),
}
ROWS = (4, 32, 128, 256)
CALLS = 6  # of a graph, each with rows of its own
_GATE_UP = {
    "bf16": ["32,64,4,4", "32,64,4,6", "32,128,4,3", "64,64,4,4", "64,128,4,3"],
    "fp8": ["32,128,4,4", "32,128,4,6", "32,256,4,3", "64,128,4,4", "64,128,8,4"],
}
_DOWN = {
    "bf16": ["64,64,4,4", "64,64,4,6", "64,128,4,4", "128,64,4,4", "256,64,8,3"],
    "fp8": ["64,128,4,4", "64,256,4,2", "64,128,4,6", "128,128,8,4", "256,128,8,3"],
}
# Heights of tiles that are tried.
_HEIGHTS = (16, 32, 64)


@dataclass(frozen=True)
class Layer:
    """One layer's weights and buffers, with rows for each call of a graph."""

    name: str
    dim: int
    moe: MoeConfig
    weights: str
    routed: ExpertWeights
    shared: ExpertWeights | None
    router: Router
    norm: Norm

    @property
    def is_fp8(self) -> bool:
        return self.weights == "fp8"

    @property
    def expert_bytes(self) -> tuple[int, int]:
        """Of gate and up, and of down."""
        size = 1 if self.is_fp8 else 2
        return 2 * self.moe.ffn_dim * self.dim * size, self.moe.ffn_dim * self.dim * size


def tiling_of(text: str) -> ExpertTiling:
    return ExpertTiling(*(int(part) for part in text.split(",")))


def make_layer(name: str, weights: str, device: str, shapes: dict[str, tuple[int, MoeConfig]]) -> Layer:
    dim, moe = shapes[name]
    torch.manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(0, 0.02)

    def experts(count: int) -> ExpertWeights:
        pair = normal(count, 2 * moe.ffn_dim, dim), normal(count, dim, moe.ffn_dim)
        return quantise_experts(*pair) if weights == "fp8" else ExpertWeights(*pair)

    bias = torch.zeros(moe.num_experts, device=device) if moe.has_bias else None
    shared = experts(1) if moe.shared_ffn_dim else None
    gain = torch.ones(dim, device=device, dtype=torch.bfloat16)
    router = Router(normal(moe.num_experts, dim), bias, moe)
    return Layer(name, dim, moe, weights, experts(moe.num_experts), shared, router, Norm(gain, 1e-6))


class Runs:
    """The rows of each call of a graph, routed, and the number of experts that they chose."""

    def __init__(self, layer: Layer, num_rows: int, height: int) -> None:
        self.layer, self.num_rows, device = layer, num_rows, layer.norm.gain.device
        dtype = torch.float16 if layer.is_fp8 else torch.bfloat16
        self.rows = [torch.randn(num_rows, layer.dim, device=device).bfloat16() for _ in range(CALLS)]
        tiles = max(layer.dim // 128, 1)
        squares = torch.full((tiles, num_rows), layer.dim / tiles, device=device)
        self.after = (layer.norm, NormInput(torch.zeros(num_rows, layer.dim, dtype=dtype, device=device), squares))
        self.spaces = []
        for x in self.rows:
            router = allocate_router(num_rows, layer.dim, layer.moe, height, dtype, device)
            pairs = router.chosen.numel()
            hidden = torch.zeros(pairs, layer.moe.ffn_dim, dtype=dtype, device=device)
            parts = torch.zeros(pairs, layer.dim, device=device)
            self.spaces.append(SparseWorkspace(router, hidden, parts))
            self.route(x, self.spaces[-1])
        counts = [len(space.router.chosen.unique()) for space in self.spaces]
        self.touched = sum(counts) / len(counts)

    def route(self, x: Tensor, space: SparseWorkspace) -> None:
        scale = INPUT_SCALE if self.layer.is_fp8 else 1.0
        squares = self.after[1].squares
        route_rows(x, self.layer.norm, self.layer.router, space.router, squares=squares, input_scale=scale)

    def experts(self, space: SparseWorkspace, tilings: ExpertTilings) -> None:
        layer = self.layer
        buffers = (space.hidden, space.parts)
        router = space.router
        expert_parts(
            router.normed, layer.routed, layer.shared, router.tiles, buffers, layer.moe.activation, tilings
        )  # fmt: skip

    def whole(self, tilings: ExpertTilings) -> None:
        for x, space in zip(self.rows, self.spaces, strict=True):
            self.route(x, space)
            self.experts(space, tilings)
            add_sparse(space, 0, x, self.after)

    def only_experts(self, tilings: ExpertTilings) -> None:
        for space in self.spaces:
            self.experts(space, tilings)

    def only_router(self) -> None:
        for x, space in zip(self.rows, self.spaces, strict=True):
            self.route(x, space)


@dataclass(frozen=True)
class Skipped:
    """Stands for one of the two kernels, so that a graph times the other one alone."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def microseconds(work: Callable[[], None], device: str) -> float:
    replay = capture(work, torch.device(device), None)
    replay()
    return min(1e3 * time_replay(replay, 8) for _ in range(3)) / CALLS


def only(runs: Runs, kernel: str, tilings: ExpertTilings, device: str) -> float:
    """Microseconds of one of the two kernels."""
    other = "down_kernel" if kernel == "gate_up" else "gate_up_kernel"
    kept = getattr(expert_module, other)
    setattr(expert_module, other, Skipped())
    try:
        return microseconds(lambda: runs.only_experts(tilings), device)
    finally:
        setattr(expert_module, other, kept)


def measure_tilings(runs: Runs, device: str, bandwidth: float) -> Iterator[dict[str, Any]]:
    """Each kernel alone with each of its tilings."""
    layer, usual = runs.layer, pick_tilings(LOW_TILE, runs.layer.is_fp8)
    for kernel, texts, num_bytes in zip(("gate_up", "down"), (_GATE_UP, _DOWN), layer.expert_bytes, strict=True):
        for text in texts[layer.weights]:
            tilings = replace(usual, **{kernel: tiling_of(text)})
            try:
                time_us = only(runs, kernel, tilings, device)
            except Exception as error:
                yield {"kernel": kernel, "tiling": text, "error": f"{type(error).__name__}: {str(error)[:100]}"}
                continue
            floor = 1e6 * num_bytes * runs.touched / bandwidth
            yield {"kernel": kernel, "tiling": text, "us": time_us, "roofline_pct": 100 * floor / time_us}


def measure(layer: Layer, num_rows: int, device: str, bandwidth: float) -> Iterator[dict[str, Any]]:
    moe, base = layer.moe, {"shape": layer.name, "weights": layer.weights, "rows": num_rows}
    height = tile_height(num_rows, moe.top_k, moe.num_experts)
    runs = Runs(layer, num_rows, height)
    base |= {"touched": runs.touched, "height": height}
    floor = 1e6 * sum(layer.expert_bytes) * runs.touched / bandwidth
    yield base | {"kernel": "router", "us": microseconds(runs.only_router, device)}
    usual = pick_tilings(height, layer.is_fp8)
    best = {"gate_up": (1e9, usual.gate_up), "down": (1e9, usual.down)}
    if height == LOW_TILE:
        for row in measure_tilings(runs, device, bandwidth):
            yield base | row
            if "us" in row:
                candidate = (row["us"], tiling_of(row["tiling"]))
                best[row["kernel"]] = min(best[row["kernel"]], candidate, key=lambda pair: pair[0])
    tilings = ExpertTilings(best["gate_up"][1], best["down"][1])
    for other in _HEIGHTS if num_rows > 16 else (height,):
        own = runs if other == height else Runs(layer, num_rows, other)
        for label, pair in (("usual", usual), ("best", tilings)) if other == height else (("usual", usual),):
            time_us = microseconds(partial(own.whole, pair), device)
            row = {"kernel": "layer", "tiling": label, "us": time_us, "roofline_pct": 100 * floor / time_us}
            yield base | row | {"height": other}


@dataclass(frozen=True)
class Variant:
    """A kernel to compile before anything is timed."""

    shape: str
    weights: str
    kernel: str
    height: int
    tiling: str = ""
    rows: int = 16


def warm_up(job: Variant) -> float:
    """Compiles one variant into Triton's cache."""
    start = time.perf_counter()
    (dim, moe), is_fp8 = SHAPES[job.shape], job.weights == "fp8"
    x = torch.float16 if is_fp8 else torch.bfloat16
    if job.kernel == "router":
        _run_router(job, dim, moe, x)
        return time.perf_counter() - start
    w, scale = (torch.float8_e4m3fn if is_fp8 else torch.bfloat16), torch.float32
    fixed = expert_module._shape(tiling_of(job.tiling), dim if job.kernel == "gate_up" else moe.ffn_dim) | {
        "NUM_EXPERTS": moe.num_experts, "HEIGHT": job.height, "SHARED": moe.shared_ffn_dim > 0, "SCALE": is_fp8,
        "PDL": 0, "grid": (1, 1),
    }  # fmt: skip
    args, tables = (w, scale, w, scale), (*(torch.int32,) * 3, 32, dim, moe.ffn_dim)
    if job.kernel == "gate_up":
        places = moe.top_k + (moe.shared_ffn_dim > 0)
        gate_up_kernel.warmup(x, *args, x, *tables, PLACES=places, GELU=moe.activation == "gelu_tanh", **fixed)
    else:
        down_kernel.warmup(x, *args, torch.float32, *tables, **fixed)
    return time.perf_counter() - start


def _run_router(job: Variant, dim: int, moe: MoeConfig, dtype: torch.dtype) -> None:
    """The router, and the sum of experts."""

    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, device="cuda", dtype=torch.bfloat16)

    bias = torch.zeros(moe.num_experts, device="cuda") if moe.has_bias else None
    norm, x = Norm(ones(dim), 1e-6), ones(job.rows, dim)
    space = allocate_router(job.rows, dim, moe, job.height, dtype, "cuda")
    pairs = space.chosen.numel()
    after = (norm, NormInput(ones(job.rows, dim).to(dtype), torch.zeros(dim // 128, job.rows, device="cuda")))
    scale = INPUT_SCALE if dtype == torch.float16 else 1.0
    squares = after[1].squares
    route_rows(x, norm, Router(ones(moe.num_experts, dim), bias, moe), space, squares=squares, input_scale=scale)
    hidden = torch.zeros(pairs, 16, device="cuda", dtype=dtype)
    add_sparse(SparseWorkspace(space, hidden, torch.zeros(pairs, dim, device="cuda")), 0, x, after)
    torch.cuda.synchronize()


def variants(shapes: list[str], formats: list[str], rows: list[int]) -> Iterator[Variant]:
    for name in shapes:
        for weights in formats:
            for kernel, texts in (("gate_up", _GATE_UP[weights]), ("down", _DOWN[weights])):
                yield from (Variant(name, weights, kernel, LOW_TILE, text) for text in texts)
                one = getattr(pick_tilings(LOW_TILE, weights == "fp8"), kernel)
                text = f"{one.block_n},{one.block_k},{one.num_warps},{one.num_stages}"
                yield from (Variant(name, weights, kernel, height, text) for height in _HEIGHTS if max(rows) > 16)
            for height in _HEIGHTS if max(rows) > 16 else (LOW_TILE,):
                few = {count for count in (32, 128) if (count > 64) == (max(rows) > 64) or min(rows) <= 64 >= count}
                yield from (Variant(name, weights, "router", height, rows=count) for count in sorted(few))


def compile_all(shapes: list[str], formats: list[str], rows: list[int]) -> None:
    jobs, start = list(variants(shapes, formats, rows)), time.perf_counter()
    with ProcessPoolExecutor(max((os.cpu_count() or 2) - 2, 1), mp_context=get_context("spawn")) as pool:
        took = list(pool.map(warm_up, jobs, chunksize=1))
    print(
        f"compiled {len(jobs)} variants, {sum(took):.0f} s of work, in {time.perf_counter() - start:.0f} s", flush=True
    )


def show(row: dict[str, Any]) -> str:
    head = f"{row['shape']} {row['weights']} rows {row['rows']} touched {row['touched']:.0f} height {row['height']}"
    if "error" in row:
        return f"{head} {row['kernel']} {row['tiling']}: {row['error']}"
    share = f" {row['roofline_pct']:5.1f} %" if "roofline_pct" in row else ""
    return f"{head} {row['kernel']} {row.get('tiling', '')}: {row['us']:7.1f} us{share}"


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--weights", default="bf16,fp8")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes in Triton's interpreter, to check the script")
    parser.add_argument("--out", type=Path, help="folder of experts.json")
    options = parser.parse_args(arguments)
    device, shapes = ("cpu", tiny_shapes()) if options.tiny else ("cuda", SHAPES)
    names, formats = options.shapes.split(","), options.weights.split(",")
    rows = [int(count) for count in options.rows.split(",")]
    if not options.tiny:
        compile_all(names, formats, rows)
    bandwidth = copy_bandwidth(device)
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    found = []
    for name in names:
        for weights in formats:
            layer = make_layer(name, weights, device, shapes)
            for count in rows:
                for row in measure(layer, count, device, bandwidth):
                    found.append(row)
                    print(show(row), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        report = {"device": str(device), "bandwidth": bandwidth, "rows": found, "shapes": _described(names)}
        (options.out / "experts.json").write_text(json.dumps(report, indent=1) + "\n")
    return found


def tiny_shapes() -> dict[str, tuple[int, MoeConfig]]:
    def small(moe: MoeConfig) -> MoeConfig:
        groups = min(moe.num_groups, 2)
        shared = 32 if moe.shared_ffn_dim else 0
        return replace(moe, num_experts=8, top_k=2, ffn_dim=32, num_groups=groups, top_groups=1, shared_ffn_dim=shared)

    return {name: (128, small(moe)) for name, (_, moe) in SHAPES.items()}


def _described(names: list[str]) -> dict[str, Any]:
    return {name: {"dim": SHAPES[name][0], **asdict(SHAPES[name][1])} for name in names}


if __name__ == "__main__":
    main()
