"""Where the time of a layer goes inside the launch between two attentions, by the clocks of its programs.

    python -m benchmarks.gpu_clocks --out DIR [--models 1.5B,8B] [--rows 16,32] [--schemes bfloat16,fp8] [--past 512]

Every row of the report is one part of a layer: its mean over programs in microseconds, and the shortest and longest.
What is left of a layer, "attention and launches", is the time of a forward by layers less all parts. Stamps make a
forward a little slower; the report has a layer's time with and without.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_setup import (
    SHAPES,
    forward_options,
    made_up_batch,
    make_runner,
    pages_for,
    random_model,
    time_ms,
    write_report,
)
from benchmarks.stamps import NUM_STAMPS, PARTS, WIDTH, stamped
from quicksilver.backends.cuda import compile as compile_module
from quicksilver.backends.cuda.graphs import GraphLimits
from quicksilver.backends.cuda.kernels import layer_fused
from quicksilver.backends.cuda.kernels.layer_fused_shape import MOST_PROGRAMS
from quicksilver.backends.cuda.kernels.network import Product
from quicksilver.model.transformer import Transformer

_plain_source = compile_module.source


def forward_ms(model: Transformer, scheme: str, count: int, past: int, stamps: Tensor | None) -> float:
    """One forward without its head; where asked, its last layer but one leaves its stamps."""

    def source(name: str) -> str:
        text = _plain_source(name)
        return text if stamps is None or name != "layer_fused.cu" else stamped(text, stamps.data_ptr())

    compile_module.source = source
    layer_fused._kernel.cache_clear()
    try:
        limits = GraphLimits(max(count, 16), 8, past + 1536, scheme, Product.FASTEST)
        runner = make_runner(model, pages_for(1, past + 512), limits)
        batch = made_up_batch(1, count, past)
        runner._launch(batch)
        return time_ms(runner._replays[runner.key_of(batch)])
    finally:
        compile_module.source = _plain_source
        layer_fused._kernel.cache_clear()


def spans_us(stamps: Tensor) -> Tensor:
    """(programs, WIDTH) -> (programs, parts): microseconds of every part. Clocks are as fast as they ran under load."""
    written = stamps[stamps[:, 0] > 0].double().cpu()
    clocks, nanoseconds = written[:, NUM_STAMPS - 1] - written[:, 0], written[:, -1] - written[:, -2]
    return (written[:, 1:NUM_STAMPS] - written[:, : NUM_STAMPS - 1]) * float(nanoseconds.sum() / clocks.sum()) / 1e3


def measure(name: str, model: Transformer, scheme: str, count: int, past: int) -> list[dict[str, Any]]:
    facts = {"model": name, "weights": scheme, "rows": count}
    plain = forward_ms(model, scheme, count, past, None) * 1e3 / SHAPES[name].num_layers
    stamps = torch.zeros(MOST_PROGRAMS, WIDTH, device="cuda", dtype=torch.int64)
    layer = forward_ms(model, scheme, count, past, stamps) * 1e3 / SHAPES[name].num_layers
    found: list[dict[str, Any]] = [
        facts | {"part": part, "us": float(each.mean()), "shortest": float(each.min()), "longest": float(each.max())}
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
        for scheme, count in product(options.schemes.split(","), options.rows.split(",")):
            found += measure(name, model, scheme, int(count), options.past)
        del model
        torch.cuda.empty_cache()
    write_report(options.out, "gpu_clocks", {"past": options.past}, found)


if __name__ == "__main__":
    main()
