"""Tokens per second with 1 to 128 streams: block decoding at a given number of tokens per forward, and autoregression.

    python -m benchmarks.gpu_batch --out DIR [--model 4B] [--block 4] [--tokens-per-forward 2] [--matmul fastest]

Times are those of graph replays, with a context of its own for every stream. Tokens per second = streams * tokens per
forward / time. Tokens per forward is a setting, not a measurement. Autoregression has one row per stream.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch

from benchmarks.gpu_forward import graph_ms
from benchmarks.gpu_setup import SHAPES, make_executor, pages_for, random_model, synthetic_batch, write_report
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.network import MatmulMode

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128)


def measure(executor: GraphExecutor, streams: int, options: argparse.Namespace) -> dict[str, Any]:
    block_ms = graph_ms(executor, synthetic_batch(streams, options.block, options.past))
    ar_ms = graph_ms(executor, synthetic_batch(streams, 1, options.past))
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
    parser.add_argument("--matmul", default="fastest", help="fastest or batch_invariant")
    options = parser.parse_args()
    model = random_model(SHAPES[options.model])
    mode = MatmulMode(options.matmul)
    limits = GraphLimits(128 * options.block, max_segments=128, context_len=2048, matmul_mode=mode)
    executor = make_executor(model, pages_for(128, options.past + 64), limits)
    rows: list[dict[str, Any]] = []
    for streams in STREAMS:
        try:
            rows.append(measure(executor, streams, options))
        except Exception as error:
            rows.append({"streams": streams, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        print(rows[-1], flush=True)
    speeds = [row.get("tok_per_s", 0.0) for row in rows]
    print("throughput rises with every doubling of streams:", all(a < b for a, b in itertools.pairwise(speeds)))
    settings = {key: getattr(options, key) for key in ("model", "block", "past", "tokens_per_forward", "matmul")}
    write_report(options.out, "gpu_batch", settings, rows)


if __name__ == "__main__":
    main()
