"""Time of each part of a layer inside the layer-fused kernel, from the clocks of its CTAs.

    python -m benchmarks.gpu_clocks --out DIR [--models 1.5B,8B] [--rows 16,32] [--weights bfloat16,fp8] [--past 512]

Every row of the report is one part of a layer: mean, minimum and maximum over CTAs in microseconds. "attention and
launches" is the rest: the time of a forward per layer minus all parts. Time stamps make a forward slightly slower; the
report has a layer's time with and without them.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_setup import (
    SHAPES,
    forward_options,
    make_executor,
    pages_for,
    random_model,
    synthetic_batch,
    time_ms,
    write_report,
)
from benchmarks.stamps import NUM_STAMPS, PARTS, WIDTH, stamped
from quicksilver.backends.cuda import compile as compile_module
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.kernels import layer_fused
from quicksilver.backends.cuda.kernels.layer_fused_shape import MAX_CTAS
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.model.transformer import Transformer

_plain_source = compile_module.source


def forward_ms(model: Transformer, scheme: str, count: int, past: int, stamps: Tensor | None) -> float:
    """One forward without its head; the last but one layer writes its stamps if `stamps` is given."""

    def source(name: str) -> str:
        text = _plain_source(name)
        return text if stamps is None or name != "layer_fused.cu" else stamped(text, stamps.data_ptr())

    compile_module.source = source
    layer_fused._kernel.cache_clear()
    try:
        limits = GraphLimits(max(count, 16), 8, past + 1536, scheme, MatmulMode.FASTEST)
        executor = make_executor(model, pages_for(1, past + 512), limits)
        batch = synthetic_batch(1, count, past)
        executor.launch(batch)
        return time_ms(executor._replays[executor.key_of(batch)])
    finally:
        compile_module.source = _plain_source
        layer_fused._kernel.cache_clear()


def spans_us(stamps: Tensor) -> Tensor:
    """(CTAs, WIDTH) -> (CTAs, parts): microseconds of every part, at the clock rate measured under load."""
    written = stamps[stamps[:, 0] > 0].double().cpu()
    clocks, nanoseconds = written[:, NUM_STAMPS - 1] - written[:, 0], written[:, -1] - written[:, -2]
    return (written[:, 1:NUM_STAMPS] - written[:, : NUM_STAMPS - 1]) * float(nanoseconds.sum() / clocks.sum()) / 1e3


def measure(name: str, model: Transformer, scheme: str, count: int, past: int) -> list[dict[str, Any]]:
    facts = {"model": name, "weights": scheme, "rows": count}
    plain = forward_ms(model, scheme, count, past, None) * 1e3 / SHAPES[name].num_layers
    stamps = torch.zeros(MAX_CTAS, WIDTH, device="cuda", dtype=torch.int64)
    layer = forward_ms(model, scheme, count, past, stamps) * 1e3 / SHAPES[name].num_layers
    found: list[dict[str, Any]] = [
        facts | {"part": part, "us": float(each.mean()), "min_us": float(each.min()), "max_us": float(each.max())}
        for (part, _), each in zip(PARTS, spans_us(stamps).t(), strict=True)
    ]
    rest = layer - sum(row["us"] for row in found)
    found.append(facts | {"part": "attention and launches", "us": rest})
    found.append(facts | {"part": "a layer", "us": layer, "without_stamps": plain})
    return found


@torch.inference_mode()
def main() -> None:
    options = forward_options(__doc__, "1.5B,8B", "16,32").parse_args()
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        model = random_model(SHAPES[name])
        for scheme, count in product(options.weights.split(","), options.rows.split(",")):
            found += measure(name, model, scheme, int(count), options.past)
        del model
        torch.cuda.empty_cache()
    write_report(options.out, "gpu_clocks", {"past": options.past}, found)


if __name__ == "__main__":
    main()
