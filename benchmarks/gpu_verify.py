"""Verify rounds and autoregression at batch 1, end to end through the engine, including the host.

    python -m benchmarks.gpu_verify --out DIR [--models 135M,1.5B] [--canvas 16] [--trees 16,32] [--weights bfloat16]

Weights are random, so no draft is accepted and a round yields two tokens; the time of a round does not depend on that.
Tokens per second are therefore computed: tokens per round from the table below over the round time measured here.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from benchmarks.gpu_setup import PAGE_SIZE, SHAPES, apply_switches, make_backend, pages_for, random_model, write_report
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.transformer import Transformer

# Measured on real weights (docs/reference/performance.md).
TOKENS_PER_ROUND = {
    "nano, held out": {8: 4.13, 16: 4.15},
    "coder trial, all domains": {8: 5.25, 16: 5.69},
    "coder trial, HumanEval": {8: 6.44, 16: 7.26},
    "coder trial, chat": {8: 3.47, 16: 3.52},
}


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
    backend = make_backend(model, config.num_pages, limits)
    backend.executor.prepare([16, 512])
    backend.prepare_rounds([RoundShape(1, 1), *shapes])
    engine.backend = backend
    return engine


def backend_of(engine: Engine) -> CudaBackend:
    assert isinstance(engine.backend, CudaBackend)
    return engine.backend


def seconds_per_round(engine: Engine, shape: RoundShape, num_rounds: int) -> tuple[float, float]:
    """Wall time of a round in the middle of an answer, and its tokens. Other round shapes are disabled."""
    backend, graphs = backend_of(engine), backend_of(engine).rounds
    backend.rounds = {shape: graphs[shape]}
    name, canvas_len = DecoderName.VERIFY, shape.canvas_len
    if canvas_len == 1:
        name = DecoderName.AR
    per_round = steps_per_round = 1 if canvas_len == 1 else 2
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
    backend.rounds = graphs
    return elapsed / num_rounds, tokens / num_rounds


def device_ms(engine: Engine, shape: RoundShape) -> float:
    """Device time of a round: consecutive replays without the engine."""
    graph = backend_of(engine).rounds[shape]
    graph.state.position.fill_(300)
    graph.state.last.fill_(7)
    graph.pages.copy_(torch.arange(graph.pages.shape[1])[None])
    replay = graph.prepare(SamplingOptions())
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
        graph = backend_of(engine).rounds[shape]
        kind = f"verify {shape.canvas_len}" + (f" with a tree of {shape.tree_rows}" if shape.tree_rows else "")
        row: dict[str, Any] = {"model": name, "decoder": kind, "rows": graph.num_rows, "ms": 1e3 * seconds}
        row |= {"device_ms": device_ms(engine, shape), "tokens_here": tokens}
        for domain, table in TOKENS_PER_ROUND.items():
            if shape.canvas_len in table and not shape.tree_rows:
                row[f"tok/s {domain}"] = table[shape.canvas_len] / seconds
        rows.append(row)
        print(row, flush=True)
    return rows


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="135M,1.5B")
    parser.add_argument("--canvas", default="16")
    parser.add_argument("--trees", default="16,32", help="rows of draft trees for canvases of 16; may be empty")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--weights", default="bfloat16", help="bfloat16, fp8 or int4")
    parser.add_argument("--switches", default="", help="see gpu_setup.apply_switches")
    options = parser.parse_args()
    apply_switches(options.switches)
    shapes = [RoundShape(1, int(canvas_len)) for canvas_len in options.canvas.split(",") if canvas_len]
    shapes += [RoundShape(1, 16, tree_rows=int(count)) for count in options.trees.split(",") if count]
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        found += measure(name, shapes, options.rounds, options.weights)
        torch.cuda.empty_cache()
    settings = {
        "weights": options.weights,
        "switches": options.switches,
        "prompt": 256,
        "rounds": options.rounds,
        "rank": 64,
    }
    write_report(options.out, "gpu_verify", settings, found)


if __name__ == "__main__":
    main()
