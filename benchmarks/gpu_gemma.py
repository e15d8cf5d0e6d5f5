"""Speed of DiffusionGemma at its real shapes with random weights: streams, parts of a step, kernels, tilings.

    python -m benchmarks.gpu_gemma [--weights fp8] [--streams 1,8] [--tilings] [--out DIR]

The number of steps is fixed, as in `gpu_dialects`. Results are printed as they are found.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.canvas_parts import time_kernels, time_parts
from benchmarks.dialect_networks import config_of, random_network
from benchmarks.gpu_dialects import CASES, answer_all
from quicksilver.backends.cuda.canvas_executor import CanvasExecutor
from quicksilver.backends.cuda.capture import time_replay
from quicksilver.backends.cuda.kernels.gemma_experts import GemmaTiling, expert_parts, pick_tilings
from quicksilver.backends.cuda.kernels.gemma_router import choose_experts
from quicksilver.backends.cuda.kernels.gemma_rows import Rows
from quicksilver.backends.cuda.kernels.row_kernels import quantise_rows
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine

_PROMPT_LEN = 128


def engine_of(weights: str, most_streams: int) -> Engine:
    config = config_of("diffusion-gemma", is_tiny=False)
    model = random_network(config, "cuda", torch.bfloat16)
    model.weight_format = None if weights == "bfloat16" else weights
    context_len = _PROMPT_LEN + CASES["gemma"].num_tokens + 512
    pages = most_streams * -(-context_len // 16) + 8
    rows = 2 * most_streams * 256
    settings = EngineConfig(num_pages=pages, max_rows=rows, max_running=most_streams, context_len=context_len)
    return build_engine(model, "gemma", settings)


def measure(engine: Engine, streams: int) -> dict[str, Any]:
    case = replace(CASES["gemma"], streams=streams)
    answer_all(engine, replace(case, num_tokens=32), _PROMPT_LEN)
    engine.pool.clear_cache()
    torch.cuda.synchronize()
    start = time.perf_counter()
    num_tokens, num_forwards = answer_all(engine, case, _PROMPT_LEN)
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    executor = engine.backend
    assert isinstance(executor, CanvasExecutor)
    return {
        "streams": streams, "tokens": num_tokens, "forwards": num_forwards, "tokens_per_s": num_tokens / elapsed,
        "ms_per_forward": 1e3 * elapsed / num_forwards, **time_parts(executor, 256 * streams),
    }  # fmt: skip


def compare_launches(executor: CanvasExecutor, num_rows: int) -> None:
    """Times of a body with and without programmatic dependent launches, and whether their results are equal."""
    found = []
    for uses_pdl in (False, True):
        executor.network.uses_pdl = uses_pdl
        executor._replays.pop(num_rows, None)
        ms = time_replay(executor._graph(num_rows), repeats=20)
        found.append(executor._hidden[:num_rows].clone())
        print(f"{num_rows} rows, dependent launches {uses_pdl}: {ms:.3f} ms", flush=True)
    print("equal results:", torch.equal(*found), flush=True)


def tilings(num_rows: int, is_fp8: bool) -> Iterator[tuple[int, GemmaTiling, GemmaTiling]]:
    """Heights of tiles and tilings to try, the likely ones first."""
    small = [(32, (128, 4, 4), (64, 4, 8)), (32, (256, 4, 3), (128, 4, 6)), (32, (128, 4, 6), (64, 4, 5))]
    small += [(32, (128, 8, 4), (256, 8, 4)), (32, (128, 4, 3), (128, 8, 5)), (64, (128, 4, 4), (64, 4, 6))]
    large = [(128, (128, 8, 4), (64, 8, 5)), (64, (128, 4, 4), (128, 4, 4)), (64, (128, 4, 3), (64, 4, 5))]
    large += [(128, (128, 8, 3), (128, 8, 4)), (128, (64, 8, 4), (64, 4, 4))]
    for height, (block_k, *first), (block_n, *second) in small if num_rows <= 512 else large:
        base = pick_tilings(height, is_fp8)
        gate_up = replace(base[0], block_k=block_k, num_warps=first[0], num_stages=first[1])
        yield height, gate_up, replace(base[1], block_n=block_n, num_warps=second[0], num_stages=second[1])


def sweep(executor: CanvasExecutor, num_rows: int, until: float) -> None:
    """Times of the kernels of the experts in each tiling."""
    network, layers = executor.network, executor.network.weights.layers[:4]  # more than the cache holds
    x = torch.randn(num_rows, network.config.dim, device="cuda", dtype=torch.bfloat16)
    given = Rows(*quantise_rows(x)) if network.is_fp8 else Rows(x)
    top_k, inverse = network.moe.top_k, torch.ones(num_rows, device="cuda")
    for height, first, second in tilings(num_rows, network.is_fp8):
        if time.perf_counter() > until:
            return
        tiles = network.expert_tiles(num_rows, height)
        choose_experts(x, inverse, layers[0].router, layers[0].expert_scale, top_k, tiles)
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for layer in layers * 3:
                    weights = (layer.expert_gate_up, layer.expert_down)
                    expert_parts(given, top_k, *weights, tiles, "gelu_tanh", torch.bfloat16, (first, second))
                torch.cuda.synchronize()
        except Exception as error:  # too much shared memory
            print(f"{num_rows} rows, height {height}, {first}, {second}: {type(error).__name__}", flush=True)
            continue
        times: dict[str, list[float]] = defaultdict(list)
        for event in profile.events():
            times[event.name].append(event.device_time_total)
        for name, tiling in (("_gate_up_kernel", first), ("_down_kernel", second)):
            best = min(times[name], default=0.0)
            mean = sum(times[name]) / max(len(times[name]), 1)
            print(f"{num_rows} rows, height {height}, {name} {tiling}: {mean:.1f} us, best {best:.1f}", flush=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="fp8", choices=("bfloat16", "fp8"))
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tilings", action="store_true", help="also time tilings of the experts")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no further tiling after this time")
    parser.add_argument("--out", type=Path, help="folder of a dated JSON file")
    options = parser.parse_args()
    counts = [int(count) for count in options.streams.split(",")]
    start = time.perf_counter()
    engine = engine_of(options.weights, max(counts))
    print(f"built in {time.perf_counter() - start:.1f} s", flush=True)
    executor = engine.backend
    assert isinstance(executor, CanvasExecutor)
    found = []
    for streams in counts:
        found.append(measure(engine, streams))
        print(json.dumps(found[-1]), flush=True)
        for kernel, (ms, count) in list(time_kernels(executor, 256 * streams).items())[:28]:
            print(f"{ms:9.4f} ms {count:5d} x  {kernel}", flush=True)
    compare_launches(executor, 256)
    for streams in counts if options.tilings else ():
        sweep(executor, 256 * streams, until=start + options.seconds)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        report = {"device": torch.cuda.get_device_name(), "weights": options.weights, "cases": found}
        (options.out / f"gemma-{datetime.now(UTC):%Y-%m-%d}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
