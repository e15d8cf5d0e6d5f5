"""Which cut suits which matrix: the linears of a layer over a few cuts, beside the library's bare product.

    python -m benchmarks.gpu_tiles --out DIR [--models 135M,1.5B,8B] [--linears qkv,o,gate_up,down]

Each matrix is timed on copies that together exceed the L2 cache. The best line of a shape belongs in
`quicksilver/model/kernels/stream.py::pick_cut`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_setup import SHAPES, copy_bandwidth, time_ms, write_report
from quicksilver.model.config import ModelConfig
from quicksilver.model.kernels import project as kernels
from quicksilver.model.kernels.project import Beside, Norm, Rotation, Scaled, Weight
from quicksilver.model.kernels.rotate import HeadNorms, RowSlots
from quicksilver.model.kernels.stream import Cut, Parts

LINEARS = ("qkv", "o", "gate_up", "down")


def shapes_of(name: str) -> dict[str, tuple[int, int]]:
    config = SHAPES[name]
    return {
        "qkv": (config.q_dim + 2 * config.kv_dim, config.dim),
        "o": (config.dim, config.q_dim),
        "gate_up": (2 * config.ffn_dim, config.dim),
        "down": (config.dim, config.ffn_dim),
    }


def cuts_of(config: ModelConfig, n: int, k: int, linear: str) -> list[Cut]:
    """Wide and narrow columns; whole depth, and cut for one and for two programs a multiprocessor."""
    columns = [config.head_dim // 2] if linear == "qkv" else [c for c in (64, 32, 16) if n % (2 * c) == 0][:2]
    found, step = dict[Cut, None](), 128 if k % 128 == 0 and k >= 2048 else 64
    for block_n in columns:
        tiles = n // (2 * block_n)
        for programs in (tiles, 132, 264) if tiles >= 40 or n * k < 2_000_000 else (132, 264):
            depth = min(k, max(64, round(k * tiles / programs / step) * step))
            for block_k, stages in ((128, 3), (64, 5)) if depth % 128 == 0 and k % 128 == 0 else ((64, 5),):
                found[Cut(block_n, block_k, depth, 4, stages)] = None
    return list(found)


def replay_ms(work: Callable[[], None], copies: int) -> float:
    """Time of one launch, from a graph of `copies` launches."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return time_ms(graph.replay, 8) / copies


class Bench:
    """One linear's weights in many copies, and all its buffers."""

    def __init__(self, name: str, linear: str, rows: int) -> None:
        self.config, self.linear, self.rows = SHAPES[name], linear, rows
        self.n, self.k = shapes_of(name)[linear]
        self.copies = max(2, min(64, int(3e8 / (2 * self.n * self.k))))
        self.weights = [self._random(self.n, self.k) for _ in range(self.copies)]
        self.x, self.stream, self.out = (
            self._random(rows, self.k),
            self._random(rows, self.n),
            self._random(rows, self.n),
        )
        self.norm = Norm(torch.ones(max(self.n, self.k), device="cuda", dtype=torch.bfloat16), 1e-6)
        self.parts = Parts.allocate(16 * 1024 * 1024, "cuda")
        self.squares = torch.ones(max(self.n, self.k) // 32, rows, device="cuda")
        self.turn = self._rotation()

    def _rotation(self) -> Rotation:
        config, zeros = self.config, torch.zeros(self.rows, device="cuda", dtype=torch.int32)
        cache = torch.empty(64, config.num_kv_heads, config.head_dim, device="cuda", dtype=torch.bfloat16)
        norms = HeadNorms(self.norm.gain, self.norm.gain, 1e-6) if config.qk_norm else None
        angles = torch.ones(64, config.head_dim, device="cuda")
        return Rotation(RowSlots(zeros, zeros), angles, (cache, cache.clone()), norms)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def library(self) -> None:
        for w in self.weights:
            torch.nn.functional.linear(self.x, w)

    def ours(self, cut: Cut) -> Callable[[], None]:
        kernels.pick_cut = lambda *_: cut  # type: ignore[assignment]
        kernels.pick_columns = kernels.pick_gate_columns = lambda _: cut.block_n  # type: ignore[assignment]
        call = {"qkv": self._qkv, "gate_up": self._swiglu}.get(self.linear, self._add)

        def work() -> None:
            for w in self.weights:
                call(w)

        return work

    def _qkv(self, w: Tensor) -> None:
        out = self.out.view(self.rows, -1, self.config.head_dim)
        x = Scaled(self.x, self.squares[:12])
        kernels.project_qkv(x, self.norm, Weight(w), out, self.turn, Beside(self.parts))

    def _swiglu(self, w: Tensor) -> None:
        out = self.out.view(-1)[: self.rows * self.n // 2].view(self.rows, -1)
        kernels.project_swiglu(Scaled(self.x, self.squares[:12]), self.norm, Weight(w), out, Beside(self.parts))

    def _add(self, w: Tensor) -> None:
        after = (self.norm, Scaled(self.out, self.squares))
        kernels.project_add(self.x, Weight(w), self.stream, after, Beside(self.parts))


def measure(name: str, linear: str, rows: int, bandwidth: float, deadline: float) -> list[dict[str, Any]]:
    bench = Bench(name, linear, rows)
    floor = 2e6 * bench.n * bench.k / bandwidth
    found = [{"model": name, "linear": linear, "cut": "library", "us": 1e3 * replay_ms(bench.library, bench.copies)}]
    for cut in cuts_of(bench.config, bench.n, bench.k, linear):
        if time.monotonic() > deadline:
            break
        label = f"2x{cut.block_n} k{cut.block_k} depth {cut.depth} x{cut.splits(bench.k)} s{cut.num_stages}"
        try:
            us = 1e3 * replay_ms(bench.ours(cut), bench.copies)
        except Exception as error:
            print(name, linear, label, type(error).__name__, str(error)[:200], flush=True)
            continue
        found.append({"model": name, "linear": linear, "cut": label, "us": us})
    for row in found:
        row["roofline_pct"] = 100 * floor / float(row["us"])
    return sorted(found, key=lambda row: float(row["us"]))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--models", default="1.5B,135M,8B")
    parser.add_argument("--linears", default=",".join(LINEARS))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=70, help="cuts not tried by then are left out")
    options = parser.parse_args()
    bandwidth = copy_bandwidth()
    deadline = time.monotonic() + options.seconds
    found: list[dict[str, Any]] = []
    for name in options.models.split(","):
        for linear in options.linears.split(","):
            found += measure(name, linear, options.rows, bandwidth, deadline)
            torch.cuda.empty_cache()
    settings = {"rows": options.rows, "copy_bandwidth": bandwidth}
    write_report(options.out, "gpu_tiles", settings, found)


if __name__ == "__main__":
    main()
