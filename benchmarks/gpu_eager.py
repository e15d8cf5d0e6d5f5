"""Forward time of eager torch (SDPA, no graphs, no custom kernels) at 1, 16, 64 and 256 rows: the baseline.

    python -m benchmarks.gpu_eager --out DIR

Random weights at the shapes of real models.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.gpu_setup import (
    DEVICE,
    PAGE_SIZE,
    SHAPES,
    copy_bandwidth,
    pages_for,
    random_model,
    synthetic_batch,
    time_ms,
    write_report,
)
from quicksilver.model.attention import PagedCache, SdpaAttend
from quicksilver.model.transformer import Transformer

PAST = 512


@torch.inference_mode()
def forward_ms(model: Transformer, rows: int) -> float:
    cache = PagedCache.allocate(model.config, pages_for(1, PAST + rows), PAGE_SIZE, DEVICE, model.dtype)
    batch = synthetic_batch(1, rows, PAST).to(DEVICE)

    def forward() -> torch.Tensor:
        attend = SdpaAttend(batch.plan, cache)
        return model.logits(model(model.embed(batch.token_ids), batch.plan.positions, attend)).argmax(-1)

    return time_ms(forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    bandwidth, found = copy_bandwidth(), []
    for name in ("135M", "1.5B"):
        model = random_model(SHAPES[name])
        num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        for rows in (1, 16, 64, 256):
            ms = forward_ms(model, rows)
            floor = num_bytes / bandwidth * 1e3
            found.append({"model": name, "rows": rows, "ms": ms, "floor_ms": floor, "roofline_pct": 100 * floor / ms})
    write_report(out, "gpu_eager", {"past": PAST, "copy_bandwidth": bandwidth, "weights": "bfloat16"}, found)


if __name__ == "__main__":
    main()
