"""Ways to run a small network in one launch, timed one by one: how many rows share a reading of the weights, programs,
warps, loads under way.

    python -m benchmarks.gpu_whole --out DIR [--models 135M] [--tries shared=16 share=1,stages=6]

`ms` is the body of 16 plain rows, `draft_ms` of a draft of 16, both without the head; `round_ms` a whole round of one
forward with a canvas of 8, on the device. See `gpu_setup.switch_whole` for the words of a try.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.gpu_setup import (
    SHAPES,
    made_up_batch,
    make_runner,
    pages_for,
    random_model,
    switch_whole,
    time_ms,
    write_report,
)
from quicksilver.backends.cuda.capture import capture
from quicksilver.backends.cuda.graphs import GraphLimits
from quicksilver.backends.cuda.logit_bias import HeadKind
from quicksilver.backends.cuda.rounds import RoundGraph, RoundRunner, one_forward

PAST = 512
TRIES = ("", "used=1", "shared=16", "share=1")


def body_ms(runner: RoundRunner, rows: int, num_canvas: int) -> float:
    buffers, space = runner._buffers(rows)
    batch = made_up_batch(1, rows, PAST, num_canvas)
    buffers.fill(batch, runner.network.shape(rows).tile_rows)
    replay = capture(lambda: runner.network.run(buffers.inputs, space, num_canvas > 0), runner.device, runner.pool)
    return time_ms(replay)


def round_ms(runner: RoundRunner) -> float:
    graph = RoundGraph(runner, one_forward(1, 8))
    replay = graph.prepare(HeadKind())
    graph.pages.copy_(torch.arange(graph.pages.shape[1]))
    graph.state.position.fill_(PAST)
    graph.state.last.fill_(7)
    return time_ms(replay)


def measure(name: str, tries: list[str]) -> list[dict[str, Any]]:
    model = random_model(SHAPES[name], rank=64)
    limits = GraphLimits(max_rows=128, max_segments=8, context_len=2048)
    found: list[dict[str, Any]] = []
    for words in tries:
        switch_whole(f"between=0,{words}")
        row: dict[str, Any] = {"model": name, "try": words}
        try:
            runner = make_runner(model, pages_for(1, limits.context_len), limits)
            row |= {"ms": body_ms(runner, 16, 0), "draft_ms": body_ms(runner, 16, 15), "round_ms": round_ms(runner)}
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
        found.append(row)
        print(row, flush=True)
    return found


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="135M")
    parser.add_argument("--tries", nargs="+", default=list(TRIES))
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        found += measure(name, options.tries)
    write_report(options.out, "gpu_whole", {"past": PAST, "rank": 64}, found)


if __name__ == "__main__":
    main()
