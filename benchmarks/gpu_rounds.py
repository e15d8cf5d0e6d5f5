"""Time of one decoding round of the persistent batch: a token for each of many sequences, head included.

    python -m benchmarks.gpu_rounds --out DIR [--models 1.5B] [--slots 16,32,64,128,256] [--context 300,1000]
                                    [--weights bfloat16] [--profile]

Random weights at true shapes, which have the same speed. Every sequence has as many cached tokens, on pages of its own.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.gpu_setup import PAGE_SIZE, SHAPES, make_executor, pages_for, random_model, time_ms, write_report
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.backends.cuda.persistent_batch import CudaPersistentBatch

# Positions that warm-up and repeats write after the context.
_SPARE = 64


def measure(executor: GraphExecutor, sizes: list[int], contexts: list[int], profile: bool) -> list[dict[str, Any]]:
    batch, found = CudaPersistentBatch(executor, max(sizes)), list[dict[str, Any]]()
    for size in sizes:
        replay = batch.graph(size).prepare(SamplingOptions())
        for context in contexts:
            set_context(batch, size, context)
            found.append({"slots": size, "context": context, "ms": round(time_ms(replay, 10), 3)})
            print(found[-1], flush=True)
            if profile:
                set_context(batch, size, context)
                print_kernels(replay)
    return found


def set_context(batch: CudaPersistentBatch, size: int, context: int) -> None:
    """All slots are after `context` tokens."""
    slots, num_pages = batch.slots, -(-(context + _SPARE) // PAGE_SIZE)
    slots.pages.zero_()
    own = torch.arange(size * num_pages, device=slots.buffer.device, dtype=torch.int32)
    slots.pages[:size, :num_pages] = own.view(size, num_pages)
    slots.last.fill_(5)
    slots.position.fill_(context)


def print_kernels(replay: Any) -> None:
    """The time of each kernel of a round, from the profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            replay()
        torch.cuda.synchronize()
    for event in sorted(profile.key_averages(), key=lambda e: -e.device_time_total)[:12]:
        print(f"    {event.key[:70]:70} {event.count // 5:4} x {event.device_time_total / event.count:7.2f} us")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of the report")
    parser.add_argument("--models", default="1.5B", help=f"comma-separated: {', '.join(SHAPES)}")
    parser.add_argument("--slots", default="16,32,64,128,256", help="comma-separated powers of two")
    parser.add_argument("--context", default="300,1000", help="comma-separated numbers of cached tokens")
    parser.add_argument("--weights", default="bfloat16", help="bfloat16, fp8 or int4")
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel")
    options = parser.parse_args()
    sizes, contexts = ([int(each) for each in text.split(",")] for text in (options.slots, options.context))
    longest, rows = max(contexts) + _SPARE, list[dict[str, Any]]()
    for name in options.models.split(","):
        limits = GraphLimits(max(*sizes, 16), max(sizes), longest + _SPARE, options.weights)
        executor = make_executor(random_model(SHAPES[name]), pages_for(max(sizes), longest), limits)
        rows += [{"model": name, **row} for row in measure(executor, sizes, contexts, options.profile)]
        del executor
        torch.cuda.empty_cache()
    write_report(options.out, "gpu_rounds", {"weights": options.weights}, rows)


if __name__ == "__main__":
    main()
