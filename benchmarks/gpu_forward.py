"""Time of one forward, head included, against the bandwidth roofline: plain torch, and our graphs in bf16 and fp8.

    python -m benchmarks.gpu_forward --out DIR [--models 135M,1.5B,8B] [--rows 1,16,64,256] [--schemes bfloat16,fp8]
                                     [--tries "" overlap=0 depth=64] [--past 512]

The roofline is the bytes of all matrices, head included, over the copy bandwidth measured in the same run. Every try is
a way to run, in the words of `gpu_setup.switch_whole`; the empty one is as shipped.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from benchmarks.gpu_setup import (
    SHAPES,
    copy_bandwidth,
    forward_options,
    made_up_batch,
    make_runner,
    pages_for,
    random_model,
    switch_whole,
    time_ms,
    write_report,
)
from quicksilver.backends.batch import Batch
from quicksilver.backends.cuda.graphs import GraphLimits, GraphRunner, bucket_of
from quicksilver.backends.cuda.kernels.network import Product
from quicksilver.backends.cuda.logit_bias import HeadKind
from quicksilver.model.attention import SdpaAttend
from quicksilver.model.transformer import Transformer


def plain_ms(model: Transformer, runner: GraphRunner, batch: Batch) -> float:
    """The network as torch runs it: one SDPA call a layer, logits stored, argmax."""
    on_device = batch.to("cuda")
    plan = on_device.plan
    attend = SdpaAttend(plan, runner.cache)

    def forward() -> None:
        x = model.embed(on_device.token_ids)
        model.logits(model(x, plan.positions, attend)).float().argmax(-1)

    return time_ms(forward, repeats=5)


def graph_ms(runner: GraphRunner, batch: Batch, *, greedy_head: bool = True) -> float:
    """One replay of the forward and, where asked, one of the head."""
    count = bucket_of(len(batch.token_ids))
    runner._launch(batch)
    forward = runner._replays[runner.key_of(batch)]
    head = runner._head(count)
    head.ints[0].copy_(torch.arange(count))
    propose = runner._graph(("head", count, HeadKind()), lambda: runner._propose(head, HeadKind()))

    def step() -> None:
        forward()
        if greedy_head:
            propose()

    return time_ms(step)


def print_profile(runner: GraphRunner, batch: Batch) -> None:
    """Where the time of a forward goes, by kernel, as the profiler sees a replay."""
    replay = runner._replays[runner.key_of(batch)]
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
    for scheme, words in product(options.schemes.split(","), options.tries):
        switch_whole(words)
        limits = GraphLimits(max(*rows, 16), 8, options.past + 1536, scheme, Product(options.product))
        try:
            runner = make_runner(model, pages_for(1, options.past + 512), limits)
        except Exception as error:
            found.append(failure(name, scheme, 0, error))
            continue
        for count in rows:
            try:
                found.append({"try": words, **measure_rows(runner, name, count, bandwidth, options)})
            except Exception as error:
                found.append(failure(name, scheme, count, error))
            print(found[-1], flush=True)
        del runner
    return found


def failure(name: str, scheme: str, count: int, error: Exception) -> dict[str, Any]:
    why = f"{type(error).__name__}: {str(error)[:300]}"
    return {"model": name, "weights": scheme, "rows": count, "failed": why}


def measure_rows(
    runner: GraphRunner, name: str, count: int, bandwidth: float, options: argparse.Namespace
) -> dict[str, Any]:
    batch, scheme = made_up_batch(1, count, options.past), runner.limits.scheme
    floor = runner.network.weights.num_bytes / bandwidth * 1e3
    ms = graph_ms(runner, batch)
    row: dict[str, Any] = {"model": name, "weights": scheme, "rows": count, "ms": ms, "floor_ms": floor}
    row |= {"roofline_pct": 100 * floor / ms, "forwards_per_s": 1e3 / ms}
    row |= {"body_ms": graph_ms(runner, batch, greedy_head=False)}
    if runner.model.canvas is not None and count > 1:
        row |= {"draft_ms": graph_ms(runner, made_up_batch(1, count, options.past, count - 1))}
    if scheme == "bfloat16" and options.plain:
        row |= {"plain_ms": plain_ms(runner.model, runner, batch)}
    if options.profile and count == 16:
        print_profile(runner, batch)
    return row


@torch.inference_mode()
def main() -> None:
    parser = forward_options(__doc__, "135M,1.5B,8B", "1,16,64,256")
    parser.add_argument("--plain", action="store_true", help="also time plain torch")
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel")
    parser.add_argument("--product", default="fastest", help="fastest, or fixed: rows that ignore their company")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers: compiles the kernels, measures nothing")
    parser.add_argument("--tries", nargs="+", default=[""], help="ways to run: gpu_setup.switch_whole")
    options = parser.parse_args()
    bandwidth = copy_bandwidth() if not options.layers else 1.0
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    rows = [int(count) for count in options.rows.split(",")]
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        found += measure(name, rows, bandwidth, options)
        torch.cuda.empty_cache()
    settings = {"product": options.product, "past": options.past, "copy_bandwidth": bandwidth}
    settings |= {"rank": "64 on 1.5B", "layers": options.layers or "all"}
    write_report(options.out, "gpu_forward", settings, found)


if __name__ == "__main__":
    main()
