"""Time of one forward with its head against the bandwidth roofline: graphs in bf16, fp8 and int4, and eager torch.

    python -m benchmarks.gpu_forward --out DIR [--models 135M,1.5B,8B] [--rows 1,16,64,256] [--weights bfloat16,fp8]
                                     [--switches "" pdl_bytes=0 fp8_block_k=64] [--past 512]

The roofline is the bytes of all matrices, including the head, over the copy bandwidth measured in the same run. Every
value of `--switches` is measured; see `gpu_setup.apply_switches`. The empty one has all defaults.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from benchmarks.gpu_setup import (
    SHAPES,
    apply_switches,
    copy_bandwidth,
    forward_options,
    make_executor,
    pages_for,
    random_model,
    synthetic_batch,
    time_ms,
    write_report,
)
from quicksilver.backends.batch import Batch
from quicksilver.backends.cuda.buffers import GraphLimits, bucket_of
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.model.attention import SdpaAttend
from quicksilver.model.transformer import Transformer


def eager_ms(model: Transformer, executor: GraphExecutor, batch: Batch) -> float:
    """The eager network: one SDPA call per layer, stored logits, argmax."""
    on_device = batch.to("cuda")
    plan = on_device.plan
    attend = SdpaAttend(plan, executor.cache)

    def forward() -> None:
        x = model.embed(on_device.token_ids)
        model.logits(model(x, plan.positions, attend)).float().argmax(-1)

    return time_ms(forward, repeats=5)


def graph_ms(executor: GraphExecutor, batch: Batch, *, greedy_head: bool = True) -> float:
    """One replay of the forward and, by default, one of the head."""
    count = bucket_of(len(batch.token_ids))
    executor.launch(batch)
    forward = executor._replays[executor.key_of(batch)]
    head = executor.head_buffers(count)
    head.ints[0].copy_(torch.arange(count))
    propose = executor.head_graph(count, SamplingOptions())

    def step() -> None:
        forward()
        if greedy_head:
            propose()

    return time_ms(step)


def print_profile(executor: GraphExecutor, batch: Batch) -> None:
    """Print the time of each kernel of a replay, from the profiler."""
    replay = executor._replays[executor.key_of(batch)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            replay()
        torch.cuda.synchronize()
    for event in sorted(profile.key_averages(), key=lambda e: -e.device_time_total)[:9]:
        print(
            f"    {event.key[:60]:60} {event.count // 5:4} x {event.device_time_total / event.count:7.2f} us",
            flush=True,
        )


def measure(name: str, rows: list[int], bandwidth: float, options: argparse.Namespace) -> list[dict[str, Any]]:
    config = SHAPES[name] if not options.layers else replace(SHAPES[name], num_layers=options.layers)
    model = random_model(config, rank=64 if name == "1.5B" else 0)
    found: list[dict[str, Any]] = []
    for scheme, switches in product(options.weights.split(","), options.switches):
        apply_switches(switches)
        limits = GraphLimits(max(*rows, 16), 8, options.past + 1536, scheme, MatmulMode(options.matmul))
        try:
            executor = make_executor(model, pages_for(1, options.past + 512), limits)
        except Exception as error:
            found.append(failure(name, scheme, 0, error))
            continue
        for count in rows:
            try:
                found.append({"switches": switches, **measure_rows(executor, name, count, bandwidth, options)})
            except Exception as error:
                found.append(failure(name, scheme, count, error))
            print(found[-1], flush=True)
        del executor
    return found


def failure(name: str, scheme: str, count: int, error: Exception) -> dict[str, Any]:
    why = f"{type(error).__name__}: {str(error)[:300]}"
    return {"model": name, "weights": scheme, "rows": count, "failed": why}


def measure_rows(
    executor: GraphExecutor, name: str, count: int, bandwidth: float, options: argparse.Namespace
) -> dict[str, Any]:
    batch, scheme = synthetic_batch(1, count, options.past), executor.limits.scheme
    floor = executor.network.weights.num_bytes / bandwidth * 1e3
    ms = graph_ms(executor, batch)
    row: dict[str, Any] = {"model": name, "weights": scheme, "rows": count, "ms": ms, "floor_ms": floor}
    row |= {"roofline_pct": 100 * floor / ms, "forwards_per_s": 1e3 / ms}
    row |= {"body_ms": graph_ms(executor, batch, greedy_head=False)}
    if executor.model.canvas is not None and count > 1:
        row |= {"draft_ms": graph_ms(executor, synthetic_batch(1, count, options.past, count - 1))}
    if scheme == "bfloat16" and options.eager:
        row |= {"eager_ms": eager_ms(executor.model, executor, batch)}
    if options.profile and count == 16:
        print_profile(executor, batch)
    return row


@torch.inference_mode()
def main() -> None:
    parser = forward_options(__doc__, "135M,1.5B,8B", "1,16,64,256")
    parser.add_argument("--eager", action="store_true", help="also time eager torch")
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel")
    parser.add_argument("--matmul", default="fastest", help="fastest or batch_invariant")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers, to compile the kernels without measuring")
    parser.add_argument("--switches", nargs="+", default=[""], help="see gpu_setup.apply_switches")
    options = parser.parse_args()
    bandwidth = copy_bandwidth() if not options.layers else 1.0
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    rows = [int(count) for count in options.rows.split(",")]
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        found += measure(name, rows, bandwidth, options)
        torch.cuda.empty_cache()
    settings = {"matmul": options.matmul, "past": options.past, "copy_bandwidth": bandwidth}
    settings |= {"rank": "64 on 1.5B", "layers": options.layers or "all"}
    write_report(options.out, "gpu_forward", settings, found)


if __name__ == "__main__":
    main()
