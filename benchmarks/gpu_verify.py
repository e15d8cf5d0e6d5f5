"""Verify rounds and plain autoregression at batch 1, end to end through the engine, host included.

    python -m benchmarks.gpu_verify --out DIR [--models 135M,1.5B] [--canvas 16] [--one-forward 8] [--trees 16,32]

Weights are random, so nothing is accepted and a round yields two tokens, or one where it is one forward; its time does
not depend on that. Tokens a second are therefore computed: tokens a round of the acceptance table below (one less where
a round is one forward), over the round time measured here.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from benchmarks.gpu_setup import PAGE_SIZE, SHAPES, make_runner, pages_for, random_model, switch_whole, write_report
from quicksilver.backends.cuda.graphs import GraphLimits
from quicksilver.backends.cuda.logit_bias import HeadKind
from quicksilver.backends.cuda.rounds import RoundShape, one_forward
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.transformer import Transformer

TOKENS_PER_ROUND = {
    "nano, held out": {8: 4.13, 16: 4.15},
    "coder trial, all domains": {8: 5.25, 16: 5.69},
    "coder trial, HumanEval": {8: 6.44, 16: 7.26},
    "coder trial, chat": {8: 3.47, 16: 3.52},
}
"""Measured on real weights elsewhere (docs/reference/performance.md); used to turn round times into tokens a second."""


def make_engine(model: Transformer, shapes: list[RoundShape], context_len: int, scheme: str = "bfloat16") -> Engine:
    config = EngineConfig(
        num_pages=pages_for(4, context_len),
        page_size=PAGE_SIZE,
        context_len=context_len,
        spare_pages=10,
        cuda_graphs=False,
    )
    engine = build_engine(model, "random", config)
    limits = GraphLimits(512, 8, context_len, scheme)
    runner = make_runner(model, config.num_pages, limits)
    runner.prepare([16, 512])
    runner.prepare_rounds([RoundShape(1, 1), *shapes])
    engine.backend = runner
    return engine


def seconds_per_round(engine: Engine, shape: RoundShape, num_rounds: int) -> tuple[float, float]:
    """Wall time of a round in the middle of an answer, and tokens it gave. No other round is in reach."""
    runner, graphs = engine.backend, engine.backend._graphs  # type: ignore[attr-defined]
    runner._graphs = {shape: graphs[shape]}  # type: ignore[attr-defined]
    name, canvas_len = DecoderName.VERIFY, shape.canvas_len
    if canvas_len == 1:
        name = DecoderName.AR
    per_round = steps_per_round = 1 if canvas_len == 1 or shape.num_sets else 2
    params = DecodeParams(per_round * (num_rounds + 40) + 64, decoder=DecoderParams(name, canvas_len))
    engine.add(Request("timed", tuple(range(5, 261)), params))
    for _ in range(8 * steps_per_round):
        engine.step()
    torch.cuda.synchronize()
    start, tokens = time.perf_counter(), 0
    for _ in range(num_rounds * steps_per_round):
        tokens += sum(len(event.token_ids) for event in engine.step())  # type: ignore[union-attr]
    elapsed = time.perf_counter() - start
    engine.abort("timed")
    engine.step()
    runner._graphs = graphs  # type: ignore[attr-defined]
    return elapsed / num_rounds, tokens / num_rounds


def device_ms(engine: Engine, shape: RoundShape) -> float:
    """A round on the device alone: replays back to back without the engine."""
    graph = engine.backend._graphs[shape]  # type: ignore[attr-defined]
    graph.state.position.fill_(300)
    graph.state.last.fill_(7)
    graph.pages.copy_(torch.arange(graph.pages.shape[1])[None])
    replay = graph.prepare(HeadKind())
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        replay()
    start.record()
    for _ in range(30):
        replay()
    end.record()
    torch.cuda.synchronize()
    graph.state.position.fill_(-1)
    return start.elapsed_time(end) / 30


def measure(name: str, shapes: list[RoundShape], num_rounds: int, scheme: str) -> list[dict[str, Any]]:
    model = random_model(SHAPES[name], rank=64)
    engine, plain = make_engine(model, shapes, 2048, scheme), RoundShape(1, 1)
    seconds, _ = seconds_per_round(engine, plain, num_rounds)
    ar = 1 / seconds
    rows: list[dict[str, Any]] = [
        {"model": name, "decoder": "ar", "ms": 1e3 * seconds, "device_ms": device_ms(engine, plain), "tok_per_s": ar}
    ]
    for shape in shapes:
        seconds, tokens = seconds_per_round(engine, shape, num_rounds)
        graph = engine.backend._graphs[shape]  # type: ignore[attr-defined]
        kind = f"verify {shape.canvas_len}" + (" in one forward" if shape.num_sets else "")
        kind += f" with a tree of {shape.tree_rows}" if shape.tree_rows else ""
        row: dict[str, Any] = {"model": name, "decoder": kind, "rows": graph.num_rows, "ms": 1e3 * seconds}
        row |= {"device_ms": device_ms(engine, shape), "tokens_here": tokens}
        for domain, table in TOKENS_PER_ROUND.items():
            if shape.canvas_len in table and not shape.tree_rows:
                per_round = table[shape.canvas_len] - (1 if shape.num_sets else 0)
                row[f"tok/s {domain}"] = per_round / seconds
        rows.append(row)
        print(row, flush=True)
    return rows


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="135M,1.5B")
    parser.add_argument("--canvas", default="16")
    parser.add_argument("--one-forward", default="8")
    parser.add_argument("--trees", default="16,32", help="rows, for canvases of 16; none are timed where this is empty")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--weights", default="bfloat16", help="bfloat16, fp8 or int4")
    parser.add_argument("--whole", default="", help="how small networks run in one launch: gpu_setup.switch_whole")
    options = parser.parse_args()
    switch_whole(options.whole)
    shapes = [RoundShape(1, int(canvas_len)) for canvas_len in options.canvas.split(",") if canvas_len]
    shapes += [RoundShape(1, 16, tree_rows=int(count)) for count in options.trees.split(",") if count]
    shapes += [one_forward(1, int(canvas_len)) for canvas_len in options.one_forward.split(",") if canvas_len]
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        found += measure(name, shapes, options.rounds, options.weights)
        torch.cuda.empty_cache()
    settings = {"weights": options.weights, "whole": options.whole, "prompt": 256, "rounds": options.rounds, "rank": 64}
    write_report(options.out, "gpu_verify", settings, found)


if __name__ == "__main__":
    main()
