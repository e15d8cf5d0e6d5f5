"""Tokens a second over 1 to 128 streams: block decoding at a fixed number of tokens a forward, beside autoregression.

    python -m benchmarks.gpu_batch --out DIR [--model 4B] [--block 4] [--tokens-per-forward 2]

Times are of graph replays with every stream behind its own context; tokens a second = streams * tokens a forward over
that time, with tokens a forward a setting, not a measurement. Autoregression is the same with one row a stream.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch

from benchmarks.gpu_forward import graph_ms
from benchmarks.gpu_setup import SHAPES, made_up_batch, make_runner, pages_for, random_model, write_report
from quicksilver.backends.cuda.graphs import GraphLimits, GraphRunner
from quicksilver.backends.cuda.kernels.network import Product

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128)


def measure(runner: GraphRunner, streams: int, options: argparse.Namespace) -> dict[str, Any]:
    block_ms = graph_ms(runner, made_up_batch(streams, options.block, options.past))
    ar_ms = graph_ms(runner, made_up_batch(streams, 1, options.past))
    speed = 1e3 * streams * options.tokens_per_forward / block_ms
    return {"streams": streams, "block_ms": block_ms, "tok_per_s": speed, "ar_ms": ar_ms,
            "ar_tok_per_s": 1e3 * streams / ar_ms}  # fmt: skip


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default="4B")
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--past", type=int, default=512)
    parser.add_argument("--tokens-per-forward", type=float, default=2.0)
    parser.add_argument("--product", default="fastest", help="fastest, or fixed: rows that ignore their company")
    options = parser.parse_args()
    model = random_model(SHAPES[options.model])
    product = Product(options.product)
    limits = GraphLimits(128 * options.block, max_segments=128, context_len=2048, product=product)
    runner = make_runner(model, pages_for(128, options.past + 64), limits)
    rows: list[dict[str, Any]] = []
    for streams in STREAMS:
        try:
            rows.append(measure(runner, streams, options))
        except Exception as error:
            rows.append({"streams": streams, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        print(rows[-1], flush=True)
    speeds = [row.get("tok_per_s", 0.0) for row in rows]
    print("rises with every doubling:", all(a < b for a, b in itertools.pairwise(speeds)))
    settings = {key: getattr(options, key) for key in ("model", "block", "past", "tokens_per_forward", "product")}
    write_report(options.out, "gpu_batch", settings, rows)


if __name__ == "__main__":
    main()
