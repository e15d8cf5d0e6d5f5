"""Prefill in chunks: time of prompts of 1K, 4K and 32K tokens, and the share of the dense matmul peak.

    python -m benchmarks.gpu_prefill --out DIR [--model 8B] [--prompts 1024,4096,32768] [--chunk 4096]

FLOPs counted: two per weight and token, and causal attention. The head runs for the last row only.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.gpu_setup import (
    SHAPES,
    apply_switches,
    make_executor,
    matmul_rate,
    pages_for,
    random_model,
    synthetic_batch,
    write_report,
)
from quicksilver.backends.batch import Batch
from quicksilver.backends.cuda.buffers import GraphLimits, bucket_of
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.model.config import ModelConfig


def flops(config: ModelConfig, num_tokens: int) -> float:
    matrices = config.num_params - config.vocab_size * config.dim * (1 if config.tied_head else 2)
    attention = 4 * config.num_layers * config.q_dim * num_tokens**2 / 2
    return 2.0 * matrices * num_tokens + attention


def prompt_ms(executor: GraphExecutor, chunks: list[Batch]) -> float:
    """From the copy of the first chunk to the last row's proposal."""
    head = executor.head_buffers(16)
    last = len(chunks[-1].token_ids) - 1
    head.ints[0].fill_(last)
    propose = executor.head_graph(16, SamplingOptions())

    def once() -> None:
        for chunk in chunks:
            executor.launch(chunk)
        propose()

    once()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    once()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def measure(executor: GraphExecutor, config: ModelConfig, length: int, chunk: int) -> dict[str, Any]:
    chunks = [synthetic_batch(1, min(chunk, length - start), start) for start in range(0, length, chunk)]
    ms = prompt_ms(executor, chunks)
    return {"prompt": length, "ms": ms, "tokens_per_s": 1e3 * length / ms, "rate": flops(config, length) / (ms / 1e3)}


def measure_far(executor: GraphExecutor, length: int, chunk: int) -> list[dict[str, Any]]:
    """The last chunk of a very long prompt, and a forward of 16 rows at its end."""
    rows = []
    for count in (chunk, 16):
        try:
            ms = prompt_ms(executor, [synthetic_batch(1, count, length - count)])
            rows.append({"prompt": count, "past": length - count, "ms": ms})
        except Exception as error:
            rows.append({"prompt": count, "past": length - count, "failed": f"{type(error).__name__}: {error}"[:300]})
        print(rows[-1], flush=True)
    return rows


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default="8B")
    parser.add_argument("--prompts", default="1024,4096,32768")
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--far", type=int, default=0, help="also measure the last chunk of a prompt of this length")
    parser.add_argument("--weights", default="bfloat16", help="bfloat16, fp8 or int4")
    parser.add_argument("--switches", default="", help="see gpu_setup.apply_switches")
    options = parser.parse_args()
    apply_switches(options.switches)
    config = SHAPES[options.model]
    prompts = [int(length) for length in options.prompts.split(",")]
    longest = max(*prompts, options.far)
    model, peak = random_model(config), matmul_rate()
    limits = GraphLimits(bucket_of(options.chunk), 4, longest + 64, options.weights)
    executor = make_executor(model, pages_for(1, longest + 64), limits)
    rows: list[dict[str, Any]] = []
    for length in prompts:
        try:
            rows.append(measure(executor, config, length, options.chunk) | {"past": 0})
            rows[-1]["matmul_peak_pct"] = 100 * rows[-1].pop("rate") / peak
        except Exception as error:
            rows.append({"prompt": length, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        print(rows[-1], flush=True)
    if options.far:
        rows += measure_far(executor, options.far, options.chunk)
    settings = {"model": options.model, "weights": options.weights, "switches": options.switches}
    settings |= {"chunk": options.chunk, "matmul_rate": peak}
    write_report(options.out, "gpu_prefill", settings, rows)


if __name__ == "__main__":
    main()
