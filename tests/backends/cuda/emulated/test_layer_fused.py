"""The launch between two attentions against plain torch, run thread by thread on this processor (`emulated.hpp`)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels import layer_fused, layer_fused_shape
from quicksilver.backends.cuda.kernels.layer_fused import BetweenWeights
from quicksilver.backends.cuda.kernels.layer_fused_shape import macros, shared_bytes
from tests.backends.cuda.emulated.bench import Bench, Case

HERE = Path(__file__).parent
SOURCES = Path(layer_fused.__file__).parents[1] / "src"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
is_emulated = pytest.mark.usefixtures("short_ranges")


CASES = [
    Case(),
    Case(rows=32),
    Case(rank=32),
    Case(rank=16, dims=(576, 1536), q_dim=576),
    Case(bits=8, has_norms=True, head_dim=128),
    Case(rows=32, bits=8, dims=(256, 1536)),
    Case(bits=4, has_norms=True, head_dim=128),
    Case(rows=32, bits=4, others=16),
    Case(rank=32, bits=8, piece=2),
    Case(rows=32, rank=16, bits=4, piece=4, has_norms=True, head_dim=128),
    Case(rank=48, bits=4, piece=4, dims=(576, 1536), q_dim=576),
    Case(rows=32, rank=16, q_dim=1536),
    Case(has_norms=True, dims=(2048, 1024)),
    Case(dims=(768, 512), q_dim=768),
    Case(head_dim=128, kv_heads=4),
]
"""Behind them: programs in teams and alone, a range for each and several, output in teams and in sets, down too; keys
so many that they are asked for ahead."""


@pytest.fixture
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small model too."""
    monkeypatch.setattr(layer_fused_shape, "_LONGEST", 512)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], ctypes.CDLL]:
    @cache
    def make(case: Case) -> ctypes.CDLL:
        to = tmp_path_factory.mktemp("between") / "layer_fused.so"
        flags = [f"-D{key}={value}" for key, value in macros(case.kind).items()]
        command = ["g++", "-std=c++17", "-O2", "-w", "-shared", "-fPIC", f"-I{SOURCES}", f"-I{HERE}", *flags]
        subprocess.run([*command, str(HERE / "emulated.cpp"), "-o", str(to)], check=True)
        return ctypes.CDLL(str(to))

    return make


def expect_close(found: Tensor, wanted: Tensor, tolerance: float = 1e-2) -> None:
    error = (found.float() - wanted).norm() / wanted.norm()
    assert error < tolerance, f"relative error {error:.2e}"


@needs_compiler
@is_emulated
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_launch_does_what_torch_does(case: Case, build: Callable[[Case], ctypes.CDLL]) -> None:
    bench, library = Bench(case), build(case)
    assert library.shared_size() <= shared_bytes(case.kind)
    assert library.num_counters() <= bench.space.counters.shape[1]
    stream, ffn, _ = bench.layer(0)
    wanted = bench.qkv(stream, 1)
    bench.space.stale_at(1).zero_()
    library.emulate(ctypes.byref(bench.arguments(0)))
    expect_close(bench.handed(0, "ffn"), ffn)
    expect_close(bench.buffers.stream, stream)
    expect_close(bench.handed(0, "squares").sum(1), stream.square().sum(-1))
    assert (bench.space.sums == 255).all(), "sums are unset for the next launch"
    assert (bench.space.stale_at(1) == 255).all(), "what the next launch is handed is unset"
    found = bench.buffers.qkv.view(wanted.shape)
    expect_close(found, wanted)
    config, slots = bench.config, bench.buffers.where.slots.long()
    kept = slots >= 0
    for kv, first in ((bench.cache.k, config.num_heads), (bench.cache.v, config.num_heads + config.num_kv_heads)):
        assert torch.equal(kv[1][slots[kept]], found[kept, first : first + config.num_kv_heads])
        assert kv[1].any(-1).any(-1).sum() == kept.sum()


@needs_compiler
def test_a_last_piece_may_be_shorter(build: Callable[[Case], ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four blocks of a warp in pieces of three."""
    monkeypatch.setattr(layer_fused_shape, "_LONGEST", 1024)
    case = Case(bits=4, dims=(1024, 2048), kv_heads=1, piece=3)
    bench = Bench(case)
    stream, ffn, _ = bench.layer(0)
    build(case).emulate(ctypes.byref(bench.arguments(0)))
    expect_close(bench.handed(0, "ffn"), ffn)
    expect_close(bench.buffers.stream, stream)


@needs_compiler
@is_emulated
@pytest.mark.parametrize("case", [Case(), Case(dims=(768, 512), q_dim=768)], ids=str)
@pytest.mark.parametrize("warp", [8, 12, 13], ids=["finishes", "brings", "asks"])
def test_everybody_waits_for_a_warp_that_is_late(case: Case, warp: int, build: Callable[[Case], ctypes.CDLL]) -> None:
    bench, library = Bench(case), build(case)
    wanted = bench.qkv(bench.layer(0)[0], 1)
    library.make_lazy(warp)
    try:
        library.emulate(ctypes.byref(bench.arguments(0)))
    finally:
        library.make_lazy(-1)
    expect_close(bench.buffers.qkv.view(wanted.shape), wanted)


@needs_compiler
@is_emulated
def test_first_and_last_launch_do_their_halves(build: Callable[[Case], ctypes.CDLL]) -> None:
    bench, library = Bench(CASES[0]), build(CASES[0])
    stream = bench.buffers.stream.float()
    bench.buffers.scaled.copy_(stream * bench.layers[0].attn_norm.gain.float())
    bench.space.squares[:, 0] = stream.square().sum(-1)
    library.emulate(ctypes.byref(bench.arguments(-1)))
    wanted = bench.qkv(stream, 0)
    expect_close(bench.buffers.qkv.view(wanted.shape), wanted)
    behind = bench.layer(1)[0]
    before = bench.buffers.qkv.clone()
    library.emulate(ctypes.byref(bench.arguments(1)))
    expect_close(bench.buffers.stream, behind)
    expect_close(bench.handed(1, "scaled"), behind * bench.packed.weights.norm.gain.float())
    assert torch.equal(bench.buffers.qkv, before)


ALIKE = [
    (Case(), Case(rows=32, programs=7)),
    (Case(has_norms=True, head_dim=128), Case(has_norms=True, head_dim=128, rows=32)),
    (Case(dims=(576, 1536), q_dim=576), Case(dims=(576, 1536), q_dim=576, rows=32)),
    (Case(), Case(rank=32)),
    (Case(dims=(576, 1536), q_dim=576), Case(dims=(576, 1536), q_dim=576, rank=48)),
]
"""Rows and rows beside others, on other programs; without an adapter and beside rows that wear one."""


@needs_compiler
@is_emulated
@pytest.mark.parametrize(("alone", "beside"), ALIKE, ids=str)
def test_a_row_has_the_same_bits_in_any_company(
    alone: Case, beside: Case, build: Callable[[Case], ctypes.CDLL]
) -> None:
    few, many = Bench(alone), Bench(beside)
    many.buffers.stream.mul_(torch.exp2(torch.randint(-9, 10, many.buffers.stream.shape)))  # so that sums are rounded
    few.buffers.stream.copy_(many.buffers.stream[:16])
    for mine, theirs in zip(few.buffers.splits, many.buffers.splits, strict=True):
        mine.copy_(theirs[:, :16])
    for name in ("positions", "slots"):
        getattr(few.buffers.where, name).copy_(getattr(many.buffers.where, name)[:16])
    few.packed, few.layers = BetweenWeights(few.config, many.packed.weights, few.cache, many.angles), many.layers
    build(few.case).emulate(ctypes.byref(few.arguments(0)))
    build(many.case).emulate(ctypes.byref(many.arguments(0)))
    plain = many.buffers.gate[:16] == 0 if beside.rank else torch.ones(16, dtype=torch.bool)
    assert torch.equal(few.buffers.stream[plain], many.buffers.stream[:16][plain])
    for name in ("squares", "middle", "ffn"):
        assert torch.equal(few.handed(0, name)[plain], many.handed(0, name)[:16][plain])
    assert torch.equal(few.buffers.qkv[plain], many.buffers.qkv[:16][plain])
