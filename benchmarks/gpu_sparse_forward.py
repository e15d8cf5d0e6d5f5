"""Time of one captured forward with its head, of networks with routed experts at their real shapes, and of its kernels.

    python -m benchmarks.gpu_sparse_forward --out DIR [--models llada2-mini] [--weights bf16,fp8] [--rows 32]

Random weights and rows of different tokens without a context, so experts are chosen nearly uniformly. The roofline
counts the matrices and the chosen experts over the copy bandwidth of the same run. No engine is built, so that a short
run suffices. The kernels are compiled first, by one process per variant with a network of few layers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.dialect_networks import config_of, random_network
from benchmarks.gpu_dialects import ExpertCount, copy_bandwidth, kernel_bytes
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.capture import time_replay
from quicksilver.backends.cuda.graphs import GraphExecutor, GraphVariant
from quicksilver.backends.cuda.kernels import network
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.model.attention import PagedCache

_SCHEMES = {"bf16": "bfloat16", "fp8": "fp8", "int4": "int4"}


def make_executor(name: str, weights: str, rows: int, num_layers: int = 0, device: str = "cuda") -> GraphExecutor:
    config = config_of(name, is_tiny=device == "cpu")
    if num_layers:
        config = replace(config, num_layers=num_layers)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = random_network(config, device, dtype)
    cache = PagedCache.allocate(config, 64, 32, device, dtype)
    executor = GraphExecutor(model, cache, 64, GraphLimits(rows, 8, 1024, scheme=_SCHEMES[weights]))
    executor.free_matrices()
    return executor


def capture_both(executor: GraphExecutor, rows: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """The forward and its greedy head, with rows that are used."""
    key = (rows, False, GraphVariant())
    executor.row_buffers(rows)[0].mark_used(executor.model.config.vocab_size)
    return executor.graph(key, lambda: executor.run_network(*key)), executor.head_graph(rows, SamplingOptions())


@torch.inference_mode()
def warm_up(job: tuple[str, str, int, bool]) -> float:
    """Compiles the kernels of one variant."""
    name, weights, rows, pdl = job
    start = time.perf_counter()
    network.PDL_MAX_BYTES = (1 << 60) if pdl else 0
    body, _ = capture_both(make_executor(name, weights, rows, num_layers=2), rows)
    body()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(executor: GraphExecutor, rows: int, bandwidth: float) -> dict[str, Any]:
    executor.row_buffers(rows)[0].mark_used(executor.model.config.vocab_size)
    counts = ExpertCount(rows)
    with counts.counting(has_kernels=True):
        executor.run_network(rows, False, GraphVariant())
    num_bytes = kernel_bytes(executor.network.weights, counts.mean)
    found: dict[str, Any] = {"experts": counts.mean, "gigabytes": num_bytes / 1e9}
    for pdl in (False, True):
        executor._replays.clear()
        executor.network.uses_pdl = pdl
        body, head = capture_both(executor, rows)
        body_ms, head_ms = (min(time_replay(run, 10) for _ in range(3)) for run in (body, head))
        share = 100 * 1e3 * num_bytes / bandwidth / (body_ms + head_ms)
        found["pdl" if pdl else "plain"] = {"body_ms": body_ms, "head_ms": head_ms, "roofline_pct": share}
    return found


def profile(executor: GraphExecutor, rows: int, repeats: int = 4) -> dict[str, tuple[float, int]]:
    """Milliseconds and launches per forward by kernel, longest first, without PDL, so that no two overlap."""
    executor._replays.clear()
    executor.network.uses_pdl = False
    body, head = capture_both(executor, rows)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for _ in range(repeats):
            body()
            head()
        torch.cuda.synchronize()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in recorded.events():
        sums[event.name[:60]][0] += event.device_time_total / 1e3 / repeats
        sums[event.name[:60]][1] += 1 / repeats
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return {name: (round(ms, 4), round(count)) for name, (ms, count) in ordered}


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="llada2-mini")
    parser.add_argument("--weights", default="bf16,fp8")
    parser.add_argument("--rows", default="32")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: tiny shapes, interpreted")
    parser.add_argument("--out", type=Path, help="folder of sparse_forward.json")
    options = parser.parse_args(arguments)
    is_gpu, counts = options.device == "cuda", [int(rows) for rows in options.rows.split(",")]
    cases = list(product(options.models.split(","), options.weights.split(",")))
    if is_gpu:
        start = time.perf_counter()
        jobs = [(*case, rows, pdl) for case in cases for rows in counts for pdl in (False, True)]
        with ProcessPoolExecutor(min(len(jobs), 12), mp_context=get_context("spawn")) as pool:
            list(pool.map(warm_up, jobs))
        print(f"compiled {len(jobs)} variants in {time.perf_counter() - start:.0f} s", flush=True)
    bandwidth = copy_bandwidth(options.device)
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    found = []
    for name, weights in cases:
        executor = make_executor(name, weights, max(counts), device=options.device)
        for rows in counts:
            found.append({"model": name, "weights": weights, "rows": rows, **measure(executor, rows, bandwidth)})
            print(json.dumps(found[-1]), flush=True)
        if is_gpu:
            found[-1]["kernels"] = profile(executor, counts[-1])
            for kernel, (ms, launches) in list(found[-1]["kernels"].items())[:18]:
                print(f"{ms:9.4f} ms {launches:5d} x  {kernel}", flush=True)
            del executor
            torch.cuda.empty_cache()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        report = {"device": options.device, "bandwidth": bandwidth, "cases": found}
        (options.out / "sparse_forward.json").write_text(json.dumps(report, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
