"""Search for tilings: the linears of a layer over many tilings, in bf16 and fp8, the best five of each shape.

    python -m benchmarks.gpu_tiles --out DIR [--shapes fp8/8B/16 bfloat16/1.5B/64] [--linears qkv,o,gate_up,down]

All tilings are compiled first, by parallel processes that fill Triton's cache. Each is then timed alone, in a graph, on
copies that exceed L2. Tilings that are not compiled or timed within the limits are left out. The best tiling of a shape
belongs in `quicksilver/backends/cuda/kernels/weight_streaming.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_setup import DEVICE, SHAPES, copy_bandwidth, time_ms, write_report
from quicksilver.backends.cuda.kernels import linears as kernels
from quicksilver.backends.cuda.kernels.launch import pdl_launches
from quicksilver.backends.cuda.kernels.linears import LinearExtras, Norm, NormInput, QkvEpilogue, Weight
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms, RowSlots
from quicksilver.backends.cuda.kernels.weight_streaming import (
    PartialSums,
    Tiling,
    pick_block_n,
    pick_fp8_tiling,
    pick_gate_block_n,
    pick_tiling,
)

LINEARS = ("qkv", "o", "gate_up", "down")
DEFAULT = ("fp8/8B/16", "fp8/8B/32", "bfloat16/1.5B/16", "bfloat16/8B/32", "bfloat16/1.5B/64", "fp8/1.5B/16")
# Shared memory per SM, less what CTAs use for anything but pipeline stages.
SHARED_BYTES = 225_000


@dataclass(frozen=True, slots=True)
class Task:
    """One linear of a shape, `scheme/model/rows`."""

    shape: str
    linear: str

    @property
    def scheme(self) -> str:
        return self.shape.split("/")[0]

    @property
    def model(self) -> str:
        return self.shape.split("/")[1]

    @property
    def rows(self) -> int:
        return int(self.shape.split("/")[2])

    @property
    def size(self) -> tuple[int, int]:
        """(out, in)"""
        config = SHAPES[self.model]
        return {
            "qkv": (config.q_dim + 2 * config.kv_dim, config.dim),
            "o": (config.dim, config.q_dim),
            "gate_up": (2 * config.ffn_dim, config.dim),
            "down": (config.dim, config.ffn_dim),
        }[self.linear]

    @property
    def group(self) -> int:
        """Columns per quantisation step of the input; 0 without steps."""
        return 0 if self.scheme != "fp8" else 64 if self.linear == "down" else 128

    def default(self) -> Tiling:
        (n, k), config = self.size, SHAPES[self.model]
        block_n = config.head_dim // 2 if self.linear == "qkv" else pick_block_n(n // 2)
        if self.linear == "gate_up" and not self.group:
            block_n = pick_gate_block_n(n // 2)
        if self.group:
            return pick_fp8_tiling(block_n, n // (2 * block_n), k, self.rows, self.group)
        return pick_tiling(block_n, n // (2 * block_n), k, self.rows)

    def tilings(self) -> Iterator[Tiling]:
        """The default first, then by number of programs, k-block, stages and warps."""
        found = {self.default(): None}
        for warps, share, programs in ((4, 2, 264), (4, 2, 132), (8, 1, 132), (4, 1, 132), (4, 3, 396), (8, 2, 264)):
            for block_n, at_once in product(self._columns(), self._at_once()):
                found |= dict.fromkeys(self._tilings(block_n, at_once, programs, (warps, share)))
        if not self.group and self.linear in ("o", "down"):  # without split K, in narrow tiles
            tiles = self.size[0] // 32
            for at_once, share in product(self._at_once(), (1, 2)):
                found |= dict.fromkeys(self._tilings(16, at_once, tiles, (4, share)))
        yield from found

    def _columns(self) -> list[int]:
        if self.linear == "qkv":
            return [SHAPES[self.model].head_dim // 2]
        widths = (64, 128) if self.group and self.linear == "gate_up" else (64, 32)
        return [width for width in widths if self.size[0] % (2 * width) == 0]

    def _at_once(self) -> list[int]:
        depths = (self.group, 2 * self.group) if self.group else (64, 128)
        return [depth for depth in depths if self.size[1] % depth == 0]

    def _tilings(self, block_n: int, block_k: int, programs: int, how: tuple[int, int]) -> Iterator[Tiling]:
        (n, k), (warps, share), width = self.size, how, 1 if self.group else 2
        tiles = n // (2 * block_n)
        depth = -(-k // max(1, programs // tiles) // block_k) * block_k
        stages = min(SHARED_BYTES // share // ((2 * block_n + self.rows) * block_k * width), depth // block_k + 1, 12)
        if stages >= 2 and (warps == 4 or block_n >= 64):
            yield Tiling(block_n, block_k, depth, warps, stages, self.group)


class Bench:
    """Many copies of one linear's weights, and its buffers."""

    def __init__(self, task: Task, copies: int = 0) -> None:
        self.task, self.config, self.rows = task, SHAPES[task.model], task.rows
        (self.n, self.k), self.is_fp8 = task.size, task.group > 0
        width = 1 if self.is_fp8 else 2
        self.copies = copies or max(4, min(96, int(5e8 / (width * self.n * self.k))))
        self.weights = [self._weight() for _ in range(self.copies)]
        self.x, self.stream = self._input(self.k), self._random(self.rows, self.n)
        self.out, self.raw = self._input(self.n), self._random(self.rows, self.n)
        self.norm = Norm(torch.ones(max(self.n, self.k), device=DEVICE, dtype=torch.bfloat16), 1e-6)
        self.partials = PartialSums.allocate(16 * 1024 * 1024, DEVICE)
        self.squares = torch.ones(max(self.n, self.k) // 32, self.rows, device=DEVICE)
        self.steps = torch.ones_like(self.squares)
        self.epilogue = self._rotation()

    def _rotation(self) -> QkvEpilogue:
        config, zeros = self.config, torch.zeros(self.rows, device=DEVICE, dtype=torch.int32)
        cache = torch.empty(64, config.num_kv_heads, config.head_dim, device=DEVICE, dtype=torch.bfloat16)
        norms = HeadNorms(self.norm.gain, self.norm.gain, 1e-6) if config.qk_norm else None
        angles = torch.ones(64, config.head_dim, device=DEVICE)
        return QkvEpilogue(RowSlots(zeros, zeros), angles, (cache, cache.clone()), norms)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)

    def _input(self, width: int) -> Tensor:
        x = self._random(self.rows, width)
        return x.to(torch.float8_e4m3fn) if self.is_fp8 else x

    def _weight(self) -> Weight:
        w = self._random(self.n, self.k)
        if not self.is_fp8:
            return Weight(w)
        return Weight(w.to(torch.float8_e4m3fn), None, torch.ones(self.n, device=DEVICE))

    def _steps(self, width: int, group: int) -> Tensor | None:
        return self.steps[: width // group] if self.is_fp8 else None

    def ours(self, tiling: Tiling) -> Callable[[], None]:
        kernels.pick_tiling = kernels.pick_fp8_tiling = lambda *_: tiling  # type: ignore[assignment]
        kernels.pick_block_n = kernels.pick_gate_block_n = lambda _: tiling.block_n  # type: ignore[assignment]
        call = {"qkv": self._qkv, "gate_up": self._swiglu}.get(self.task.linear, self._add)

        def work() -> None:
            with pdl_launches(self.is_fp8 or self.task.model == "1.5B"):
                for weight in self.weights:
                    call(weight, tiling)

        return work

    def _scaled(self) -> NormInput:
        return NormInput(self.x, self.squares[: self.k // 128], self._steps(self.k, 128))

    def _qkv(self, weight: Weight, _: Tiling) -> None:
        out = self.raw.view(self.rows, -1, self.config.head_dim)
        kernels.linear_qkv(self._scaled(), self.norm, weight, out, self.epilogue, LinearExtras(self.partials))

    def _swiglu(self, weight: Weight, tiling: Tiling) -> None:
        out = self.out.view(-1)[: self.rows * self.n // 2].view(self.rows, -1)
        extras = LinearExtras(self.partials, None, self._steps(self.n // 2, tiling.block_n))
        kernels.linear_swiglu(self._scaled(), self.norm, weight, out, extras)

    def _add(self, weight: Weight, tiling: Tiling) -> None:
        after = (self.norm, NormInput(self.out, self.squares, self._steps(self.n, 2 * tiling.block_n)))
        extras = LinearExtras(self.partials, None, self._steps(self.k, self.task.group or 1))
        kernels.linear_add(self.x, weight, self.stream, after, extras)


def compile_tiling(job: tuple[Task, Tiling]) -> str | None:
    """One launch on one copy -> the error, if any. The compiled kernel stays in Triton's cache."""
    try:
        with torch.inference_mode():
            Bench(job[0], copies=1).ours(job[1])()
            torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return None


def compile_all(jobs: list[tuple[Task, Tiling]], processes: int, seconds: float) -> list[tuple[Task, Tiling]]:
    """The jobs that compiled in time. Workers are forked before this process initialises CUDA."""
    deadline, done = time.monotonic() + seconds, []
    pool = multiprocessing.get_context("fork").Pool(processes)
    results = [(job, pool.apply_async(compile_tiling, (job,))) for job in jobs]
    for job, result in results:
        try:
            failure = result.get(max(0.01, deadline - time.monotonic()))
        except multiprocessing.TimeoutError:
            continue
        if failure is None:
            done.append(job)
        else:
            print("left out:", job[0].shape, job[0].linear, label_of(job[1], job[0]), failure, flush=True)
    pool.terminate()
    pool.join()
    return done


def label_of(tiling: Tiling, task: Task) -> str:
    splits = tiling.splits(task.size[1])
    return (
        f"2x{tiling.block_n} k{tiling.block_k} depth {tiling.depth} x{splits} s{tiling.num_stages} w{tiling.num_warps}"
    )


def replay_ms(work: Callable[[], None], copies: int) -> float:
    """Time per launch, from a graph of `copies` launches."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return time_ms(graph.replay, 8) / copies


def measure(task: Task, tilings: list[Tiling], bandwidth: float, deadline: float) -> list[dict[str, Any]]:
    """Fastest first; the default tiling is marked."""
    bench, found = Bench(task), list[dict[str, Any]]()
    floor = 1e6 * bench.n * bench.k * (1 if bench.is_fp8 else 2) / bandwidth
    for tiling in tilings:
        if time.monotonic() > deadline:
            break
        try:
            us = 1e3 * replay_ms(bench.ours(tiling), bench.copies)
        except Exception as error:
            print("left out:", task.shape, task.linear, label_of(tiling, task), str(error)[:120], flush=True)
            continue
        row = {"shape": task.shape, "linear": task.linear, "tiling": label_of(tiling, task), "us": us}
        found.append(row | {"roofline_pct": 100 * floor / us, "is_default": tiling == task.default()})
    return sorted(found, key=lambda row: float(row["us"]))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--shapes", nargs="+", default=list(DEFAULT))
    parser.add_argument("--linears", default=",".join(LINEARS))
    parser.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--compile-seconds", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=45, help="for the timing")
    options = parser.parse_args()
    tasks = [Task(shape, linear) for shape in options.shapes for linear in options.linears.split(",")]
    start = time.monotonic()
    jobs = [(task, tiling) for task in tasks for tiling in task.tilings()]
    done = compile_all(jobs, options.processes, options.compile_seconds)
    print(f"{len(done)} of {len(jobs)} tilings compiled after {time.monotonic() - start:.0f} s", flush=True)
    bandwidth, found = copy_bandwidth(), list[dict[str, Any]]()
    deadline = time.monotonic() + options.seconds
    for task in tasks:
        rows = measure(task, [tiling for other, tiling in done if other == task], bandwidth, deadline)
        found += rows[:5] + [row for row in rows[5:] if row["is_default"]]
        torch.cuda.empty_cache()
    print(f"timed after {time.monotonic() - start:.0f} s", flush=True)
    write_report(options.out, "gpu_tiles", {"copy_bandwidth": bandwidth, "tilings": len(done)}, found)


if __name__ == "__main__":
    main()
