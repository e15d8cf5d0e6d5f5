"""Which tile suits which matrix: the skinny projection over a few tiles, beside the library's product.

    python -m benchmarks.gpu_tiles --out DIR [--models 135M,1.5B,8B]

Each matrix is timed on copies that together exceed the L2 cache. The best line of a shape belongs in
`quicksilver/model/kernels/project.py::pick_tile`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from benchmarks.gpu_setup import SHAPES, copy_bandwidth, time_ms, write_report
from quicksilver.model.kernels import project as kernels
from quicksilver.model.kernels.project import Norm, Tile, Weight, project, project_swiglu

TILES = [
    Tile(16, 128, 4, 4), Tile(16, 128, 2, 5), Tile(16, 256, 4, 4), Tile(32, 128, 4, 4), Tile(32, 128, 2, 5),
    Tile(32, 256, 4, 3), Tile(64, 128, 4, 4), Tile(16, 64, 4, 6), Tile(16, 128, 1, 6),
]  # fmt: skip


def shapes_of(name: str) -> dict[str, tuple[int, int]]:
    config = SHAPES[name]
    return {
        "qkv": (config.q_dim + 2 * config.kv_dim, config.dim),
        "o": (config.dim, config.q_dim),
        "gate_up": (2 * config.ffn_dim, config.dim),
        "down": (config.dim, config.ffn_dim),
    }


def replay_ms(work: Any, copies: int) -> float:
    """Time of one launch, from a graph of `copies` launches."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return time_ms(graph.replay, 10) / copies


def measure(name: str, linear: str, num_rows: int, bandwidth: float, deadline: float) -> list[dict[str, Any]]:
    n, k = shapes_of(name)[linear]
    copies = max(2, min(64, int(3e8 / (2 * n * k))))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
    x = torch.randn(num_rows, k, device="cuda", dtype=torch.bfloat16)
    is_swiglu = linear == "gate_up"
    out = torch.empty(num_rows, n // 2 if is_swiglu else n, device="cuda", dtype=torch.bfloat16)
    norm = Norm(torch.ones(k, device="cuda", dtype=torch.bfloat16), 1e-6)
    floor = 2 * n * k / bandwidth * 1e3

    def ours() -> None:
        for w in weights:
            if is_swiglu:
                project_swiglu(x, Weight(w), out, norm, None)
            elif linear == "qkv":
                project(x, Weight(w), out, norm, None, None)
            else:
                project(x, Weight(w), out, None, out, None)

    def library() -> None:
        for w in weights:
            torch.nn.functional.linear(x, w)

    rows = [{"model": name, "linear": linear, "tile": "library", "us": 1e3 * replay_ms(library, copies)}]
    for tile in TILES:
        width = n // 2 if is_swiglu else n
        if width % tile.block_n or width // tile.block_n > 2048 or time.monotonic() > deadline:
            continue
        kernels.pick_tile = lambda n, k, rows, t=tile: t  # type: ignore[assignment]
        label = f"{tile.block_n}x{tile.block_k} w{tile.num_warps} s{tile.num_stages}"
        rows.append({"model": name, "linear": linear, "tile": label, "us": 1e3 * replay_ms(ours, copies)})
    for row in rows:
        row["roofline_pct"] = 100 * floor * 1e3 / row["us"]
    return sorted(rows, key=lambda row: row["us"])


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="1.5B,135M,8B")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=70, help="tiles not tried by then are left out")
    options = parser.parse_args()
    bandwidth = copy_bandwidth()
    deadline = time.monotonic() + options.seconds
    found = [
        row
        for name in options.models.split(",")
        for linear in shapes_of(name)
        for row in measure(name, linear, options.rows, bandwidth, deadline)
    ]
    write_report(options.out, "gpu_tiles", {"rows": options.rows, "copy_bandwidth": bandwidth}, found)


if __name__ == "__main__":
    main()
