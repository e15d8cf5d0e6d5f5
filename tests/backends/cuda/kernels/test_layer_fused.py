"""The layer-fused kernel against plain torch, emulated thread by thread on the CPU (`emulated/emulated.hpp`)."""

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
from quicksilver.backends.cuda.kernels.layer_fused import LayerFusedWeights
from quicksilver.backends.cuda.kernels.layer_fused_shape import macros, shared_bytes
from tests.backends.cuda.emulated.bench import Bench, Case

HERE = Path(__file__).parents[1] / "emulated"
SOURCES = Path(layer_fused.__file__).parents[1] / "src"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
with_short_ranges = pytest.mark.usefixtures("short_ranges")


# Clusters and single CTAs, one and several K ranges per CTA, o and down in clusters and with split K, and enough keys
# that they are prefetched.
CASES = [
    Case(),
    Case(rows=32),
    Case(rank=32),
    Case(rank=16, dims=(576, 1536), q_dim=576),
    Case(bits=8, has_norms=True, head_dim=128),
    Case(rows=32, bits=8, dims=(256, 1536)),
    Case(bits=4, has_norms=True, head_dim=128),
    Case(rows=32, bits=4, others=16),
    Case(rank=32, bits=8, stage_blocks=2),
    Case(rows=32, rank=16, bits=4, stage_blocks=4, has_norms=True, head_dim=128),
    Case(rank=48, bits=4, stage_blocks=4, dims=(576, 1536), q_dim=576),
    Case(rows=32, rank=16, q_dim=1536),
    Case(has_norms=True, dims=(2048, 1024)),
    Case(dims=(768, 512), q_dim=768),
    Case(head_dim=128, kv_heads=4),
]


@pytest.fixture
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several K ranges also for a small model."""
    monkeypatch.setattr(layer_fused_shape, "_MAX_RANGE", 512)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], ctypes.CDLL]:
    @cache
    def make(case: Case) -> ctypes.CDLL:
        to = tmp_path_factory.mktemp("layer_fused") / "layer_fused.so"
        flags = [f"-D{key}={value}" for key, value in macros(case.spec).items()]
        command = ["g++", "-std=c++17", "-O2", "-w", "-shared", "-fPIC", f"-I{SOURCES}", f"-I{HERE}", *flags]
        subprocess.run([*command, str(HERE / "emulated.cpp"), "-o", str(to)], check=True)
        return ctypes.CDLL(str(to))

    return make


def expect_close(found: Tensor, wanted: Tensor, tolerance: float = 1e-2) -> None:
    error = (found.float() - wanted).norm() / wanted.norm()
    assert error < tolerance, f"relative error {error:.2e}"


@needs_compiler
@with_short_ranges
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_launch_equals_torch(case: Case, build: Callable[[Case], ctypes.CDLL]) -> None:
    bench, library = Bench(case), build(case)
    assert library.shared_size() <= shared_bytes(case.spec)
    assert library.num_counters() <= bench.space.counters.shape[1]
    stream, ffn, _ = bench.layer(0)
    wanted = bench.qkv(stream, 1)
    bench.space.next_exchange(1).zero_()
    library.emulate(ctypes.byref(bench.arguments(0)))
    expect_close(bench.exchanged(0, "ffn"), ffn)
    expect_close(bench.buffers.stream, stream)
    expect_close(bench.exchanged(0, "qkv_squares").sum(1), stream.square().sum(-1))
    assert (bench.space.sums == 255).all(), "split-K sums are reset to the sentinel"
    assert (bench.space.next_exchange(1) == 255).all(), "exchange buffers of the next launch are reset to the sentinel"
    found = bench.buffers.qkv.view(wanted.shape)
    expect_close(found, wanted)
    config, slots = bench.config, bench.buffers.where.slots.long()
    kept = slots >= 0
    for kv, first in ((bench.cache.k, config.num_heads), (bench.cache.v, config.num_heads + config.num_kv_heads)):
        assert torch.equal(kv[1][slots[kept]], found[kept, first : first + config.num_kv_heads])
        assert kv[1].any(-1).any(-1).sum() == kept.sum()


@needs_compiler
def test_the_last_stage_of_a_range_may_be_shorter(
    build: Callable[[Case], ctypes.CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four k-blocks of a warp in stages of three."""
    monkeypatch.setattr(layer_fused_shape, "_MAX_RANGE", 1024)
    case = Case(bits=4, dims=(1024, 2048), kv_heads=1, stage_blocks=3)
    bench = Bench(case)
    stream, ffn, _ = bench.layer(0)
    build(case).emulate(ctypes.byref(bench.arguments(0)))
    expect_close(bench.exchanged(0, "ffn"), ffn)
    expect_close(bench.buffers.stream, stream)


@needs_compiler
@with_short_ranges
@pytest.mark.parametrize("case", [Case(), Case(dims=(768, 512), q_dim=768)], ids=str)
@pytest.mark.parametrize("warp", [8, 12, 13], ids=["epilogue", "load", "prefetch"])
def test_a_delayed_warp_changes_no_result(case: Case, warp: int, build: Callable[[Case], ctypes.CDLL]) -> None:
    bench, library = Bench(case), build(case)
    wanted = bench.qkv(bench.layer(0)[0], 1)
    library.delay_warp(warp)
    try:
        library.emulate(ctypes.byref(bench.arguments(0)))
    finally:
        library.delay_warp(-1)
    expect_close(bench.buffers.qkv.view(wanted.shape), wanted)


@needs_compiler
@with_short_ranges
def test_first_and_last_launch_compute_their_parts(build: Callable[[Case], ctypes.CDLL]) -> None:
    bench, library = Bench(CASES[0]), build(CASES[0])
    stream = bench.buffers.stream.float()
    bench.buffers.norm_input.copy_(stream * bench.layers[0].attn_norm.gain.float())
    bench.space.squares[:, 0] = stream.square().sum(-1)
    library.emulate(ctypes.byref(bench.arguments(-1)))
    wanted = bench.qkv(stream, 0)
    expect_close(bench.buffers.qkv.view(wanted.shape), wanted)
    after = bench.layer(1)[0]
    before = bench.buffers.qkv.clone()
    library.emulate(ctypes.byref(bench.arguments(1)))
    expect_close(bench.buffers.stream, after)
    expect_close(bench.exchanged(1, "qkv_input"), after * bench.packed.weights.norm.gain.float())
    assert torch.equal(bench.buffers.qkv, before)


# Rows alone and in a batch, on another number of CTAs; without an adapter and beside rows that use one.
ALIKE = [
    (Case(), Case(rows=32, num_ctas=7)),
    (Case(has_norms=True, head_dim=128), Case(has_norms=True, head_dim=128, rows=32)),
    (Case(dims=(576, 1536), q_dim=576), Case(dims=(576, 1536), q_dim=576, rows=32)),
    (Case(), Case(rank=32)),
    (Case(dims=(576, 1536), q_dim=576), Case(dims=(576, 1536), q_dim=576, rank=48)),
]


@needs_compiler
@with_short_ranges
@pytest.mark.parametrize(("alone", "beside"), ALIKE, ids=str)
def test_the_kernel_is_batch_invariant(alone: Case, beside: Case, build: Callable[[Case], ctypes.CDLL]) -> None:
    few, many = Bench(alone), Bench(beside)
    many.buffers.stream.mul_(torch.exp2(torch.randint(-9, 10, many.buffers.stream.shape)))  # so that sums round
    few.buffers.stream.copy_(many.buffers.stream[:16])
    for mine, theirs in zip(few.buffers.splits, many.buffers.splits, strict=True):
        mine.copy_(theirs[:, :16])
    for name in ("positions", "slots"):
        getattr(few.buffers.where, name).copy_(getattr(many.buffers.where, name)[:16])
    few.packed, few.layers = LayerFusedWeights(few.config, many.packed.weights, few.cache, many.angles), many.layers
    build(few.case).emulate(ctypes.byref(few.arguments(0)))
    build(many.case).emulate(ctypes.byref(many.arguments(0)))
    plain = many.buffers.gate[:16] == 0 if beside.rank else torch.ones(16, dtype=torch.bool)
    assert torch.equal(few.buffers.stream[plain], many.buffers.stream[:16][plain])
    for name in ("qkv_squares", "ffn_input", "ffn"):
        assert torch.equal(few.exchanged(0, name)[plain], many.exchanged(0, name)[:16][plain])
    assert torch.equal(few.buffers.qkv[plain], many.buffers.qkv[:16][plain])
