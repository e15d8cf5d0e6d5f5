"""Whether the persistent kernel pays: forwards of nano at 33 to 128 rows with and without it, in one run.

    python -m benchmarks.gpu_small_rows --out DIR [--rows 33,48,64,96,128] [--past 512]

Needs torch and Triton only; weights are random. A bucket is measured as the engine runs it: one graph replay of the
body and one of the greedy head. `streams` sequences share the rows. `draft_*` are the same rows as canvases with the
adapter. `other_*` is the path without the persistent kernel: six launches per layer up to 64 rows, cuBLAS above.
`ratio` is its time over the persistent kernel's: below 1.1 the kernel can be deleted.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu_forward import graph_ms
from benchmarks.gpu_setup import (
    SHAPES,
    apply_switches,
    forward_options,
    make_executor,
    pages_for,
    random_model,
    synthetic_batch,
    write_report,
)
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.model.transformer import Transformer

MAX_STREAMS = 8


def streams_of(rows: int) -> int:
    """The largest divisor of `rows` up to MAX_STREAMS: sequences with equal numbers of rows."""
    return max(count for count in range(1, MAX_STREAMS + 1) if rows % count == 0)


def executor_with(model: Transformer, is_persistent: bool, past: int) -> GraphExecutor:
    apply_switches(f"persistent={int(is_persistent)}")
    limits = GraphLimits(max_rows=128, max_segments=MAX_STREAMS, context_len=past + 256)
    executor = make_executor(model, pages_for(MAX_STREAMS, past + 160), limits)
    assert executor.network.is_persistent(128) == is_persistent, "the switch has no effect"
    return executor


def times(executor: GraphExecutor, rows: int, past: int) -> dict[str, float]:
    streams = streams_of(rows)
    each = rows // streams
    return {
        "ms": graph_ms(executor, synthetic_batch(streams, each, past)),
        "draft_ms": graph_ms(executor, synthetic_batch(streams, each, past, each - 1)),
    }


def measure(model: Transformer, counts: list[int], past: int) -> list[dict[str, Any]]:
    found: dict[bool, list[dict[str, float]]] = {}
    for is_persistent in (True, False):
        executor = executor_with(model, is_persistent, past)
        found[is_persistent] = [times(executor, rows, past) for rows in counts]
        del executor
        torch.cuda.empty_cache()
    apply_switches("")
    table = []
    for rows, fused, plain in zip(counts, found[True], found[False], strict=True):
        row: dict[str, Any] = {"rows": rows, "streams": streams_of(rows)}
        for key in ("ms", "draft_ms"):
            prefix = key.removesuffix("ms")
            row |= {f"{prefix}persistent_ms": fused[key], f"{prefix}other_ms": plain[key]}
            row |= {f"{prefix}ratio": plain[key] / fused[key]}
        table.append(row)
    return table


@torch.inference_mode()
def main() -> None:
    options = forward_options(__doc__, "135M", "33,48,64,96,128").parse_args()
    rows = [int(count) for count in options.rows.split(",")]
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        model = random_model(SHAPES[name], rank=64)
        found += [{"model": name, **row} for row in measure(model, rows, options.past)]
    settings = {"past": options.past, "rank": 64, "weights": "bfloat16", "max_streams": MAX_STREAMS}
    write_report(options.out, "gpu_small_rows", settings, found)


if __name__ == "__main__":
    main()
