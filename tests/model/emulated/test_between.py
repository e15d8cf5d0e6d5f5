"""The launch between two attentions against plain torch, run thread by thread on this processor (`emulated.hpp`)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.kernels import between, between_shape
from quicksilver.model.kernels.between import Arguments, BetweenSpace, BetweenWeights, Buffers
from quicksilver.model.kernels.between_shape import (
    Chip,
    Cut,
    Kind,
    cut_for,
    fits,
    macros,
    shared_bytes,
    with_slots,
)
from quicksilver.model.kernels.cuda import compile as compile_module
from quicksilver.model.kernels.cuda.compile import CudaError, compile_binary
from quicksilver.model.packing import dequantise_int4, quantise_int4

HERE = Path(__file__).parent
SOURCES = Path(between.__file__).parent / "cuda"

SPLITS = 4
KEY_BLOCK = 64

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
is_emulated = pytest.mark.usefixtures("short_ranges")


@dataclass(frozen=True)
class Case:
    rows: int = 16
    rank: int = 0
    bits: int = 16
    has_norms: bool = False
    head_dim: int = 64
    programs: int = 4
    dims: tuple[int, int] = (512, 1536)
    q_dim: int = 512
    kv_heads: int | None = None
    piece: int = 1

    @property
    def kind(self) -> Kind:
        chip = Chip(self.programs, 1 << 20, (9, 0))
        return Kind(shape(self), self.rows, self.rank, self.bits, not self.has_norms, SPLITS, chip, self.piece)


CASES = [
    Case(),
    Case(rows=32),
    Case(rank=32),
    Case(rank=16, dims=(576, 1536), q_dim=576),
    Case(bits=8, has_norms=True, head_dim=128),
    Case(rows=32, bits=8, dims=(256, 1536)),
    Case(bits=4, has_norms=True, head_dim=128),
    Case(rows=32, bits=4),
    Case(rows=32, rank=16, q_dim=1536),
    Case(has_norms=True, dims=(2048, 1024)),
    Case(dims=(768, 512), q_dim=768),
    Case(head_dim=128, kv_heads=4),
]
"""Behind them: programs in teams and alone, a range for each and several, output in teams and in sets, down too; keys
so many that they are asked for ahead."""


def shape(case: Case) -> ModelConfig:
    dim, ffn_dim = case.dims
    heads, kv_heads = case.q_dim // case.head_dim, 128 // case.head_dim if case.q_dim == 512 else 3
    kv_heads = case.kv_heads or kv_heads
    return ModelConfig(
        family="qwen3" if case.has_norms else "qwen2", num_layers=2, dim=dim, ffn_dim=ffn_dim, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=case.head_dim, vocab_size=64, context_len=64, qkv_bias=not case.has_norms,
        qk_norm=case.has_norms,
    )  # fmt: skip


@pytest.fixture
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small model too."""
    monkeypatch.setattr(between_shape, "_LONGEST", 512)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], ctypes.CDLL]:
    @cache
    def make(case: Case) -> ctypes.CDLL:
        to = tmp_path_factory.mktemp("between") / "between.so"
        flags = [f"-D{key}={value}" for key, value in macros(case.kind).items()]
        command = ["g++", "-std=c++17", "-O2", "-w", "-shared", "-fPIC", f"-I{SOURCES}", f"-I{HERE}", *flags]
        subprocess.run([*command, str(HERE / "emulated.cpp"), "-o", str(to)], check=True)
        return ctypes.CDLL(str(to))

    return make


def random_weight(outputs: int, depth: int, case: Case) -> SimpleNamespace:
    w = torch.randn(outputs, depth) / depth**0.5
    rest = {"bias": None, "groups": None, "bits": case.bits}
    if case.bits == 16:
        return SimpleNamespace(w=w.bfloat16(), scale=None, **rest)
    if case.bits == 4:
        q, scale, zero = quantise_int4(w, 32)
        return SimpleNamespace(w=q, scale=None, **rest | {"groups": torch.stack((scale, zero), -1).half()})
    scale = w.abs().amax(-1) / 448
    return SimpleNamespace(w=(w / scale[:, None]).to(torch.float8_e4m3fn), scale=scale, **rest)


def widened(weight: SimpleNamespace) -> Tensor:
    """What the linear multiplies with, in float32."""
    if weight.groups is not None:
        return dequantise_int4(weight.w, *weight.groups.unbind(-1))
    return weight.w.float() if weight.scale is None else weight.w.float() * weight.scale[:, None]


def random_layer(config: ModelConfig, case: Case) -> SimpleNamespace:
    widths = {
        "qkv": (config.q_dim + 2 * config.kv_dim, config.dim), "o": (config.dim, config.q_dim),
        "gu": (2 * config.ffn_dim, config.dim), "dn": (config.dim, config.ffn_dim),
    }  # fmt: skip
    canvas = {
        kind: SimpleNamespace(
            a=(torch.randn(case.rank, k) / k**0.5).bfloat16(), b=(torch.randn(n, case.rank) / 4).bfloat16()
        )
        for kind, (n, k) in widths.items()
        if case.rank
    }
    linears = {kind: random_weight(n, k, case) for kind, (n, k) in widths.items()}
    if not case.has_norms:
        linears["qkv"].bias = torch.randn(widths["qkv"][0]).bfloat16()

    def norm() -> SimpleNamespace:
        return SimpleNamespace(gain=(1 + torch.randn(config.dim) / 4).bfloat16(), eps=1e-6)

    def gain() -> Tensor:
        return (1 + torch.randn(config.head_dim) / 4).bfloat16()

    head_norms = SimpleNamespace(q=gain(), k=gain(), eps=1e-6) if case.has_norms else None
    return SimpleNamespace(
        attn_norm=norm(), ffn_norm=norm(), qkv=linears["qkv"], o=linears["o"], gate_up=linears["gu"],
        down=linears["dn"], canvas=canvas, head_norms=head_norms,
    )  # fmt: skip


class Bench:
    """Two random layers, buffers as a forward has them, and plain torch's account of what a launch does."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(7)
        self.case, self.config = case, shape(case)
        config, rows = self.config, case.rows
        self.layers = [random_layer(config, case) for _ in range(2)]
        last = SimpleNamespace(gain=(1 + torch.randn(config.dim) / 4).bfloat16(), eps=1e-6)
        weights = SimpleNamespace(tokens=torch.zeros(1), layers=self.layers, norm=last)
        self.cache = PagedCache.allocate(config, 4, 16, "cpu", torch.bfloat16)
        angles = torch.randn(64, 2, config.head_dim // 2)
        self.packed = BetweenWeights(config, weights, self.cache, angles)  # type: ignore[arg-type]
        self.angles, self.shrink = angles, 1 / 64 if case.bits < 16 else 1.0
        dtype = torch.float16 if case.bits < 16 else torch.bfloat16
        slots = torch.randperm(64)[:rows].int()
        slots[3] = -1
        where = SimpleNamespace(positions=torch.randint(0, 64, (rows,)).int(), slots=slots)
        heads = (SPLITS, rows, config.num_heads)
        splits = (torch.randn(*heads, config.head_dim), torch.randn(heads), torch.rand(heads) + 0.5)
        splits[0][1, 2], splits[1][1, 2], splits[2][1, 2] = 0, -torch.inf, 0  # saw nothing
        splits[1][:, 5], splits[2][:, 5] = -torch.inf, 0  # a row that nobody attends for
        splits[0][:, 5] = 0
        prefix_end, span = torch.full((rows,), SPLITS * KEY_BLOCK - 1).int(), torch.zeros(2, rows).int()
        prefix_end[7], span[1, 7] = KEY_BLOCK + 1, 3  # sees two blocks, and rows of its forward
        prefix_end[8] = KEY_BLOCK * 3  # three blocks, and no rows
        left_out = ((2, 7), (3, 8))
        for at in left_out:
            splits[0][at] = splits[1][at] = splits[2][at] = torch.nan
        tiles, pages = (
            torch.tensor([[0, 0, 4], [0, 4, 9], [1, 9, rows], [0, 0, 0]]),
            torch.arange(32).view(2, 16) % 5 - 1,
        )
        tables = SimpleNamespace(
            prefix_end=prefix_end,
            span_start=span[0],
            span_end=span[1],
            tiles=tiles.int(),
            pages=pages.int(),
            num_shared=4,
        )
        self.buffers = Buffers(
            splits, torch.randn(rows, config.dim).bfloat16(), torch.zeros(rows, config.dim, dtype=dtype),
            torch.zeros(rows, config.q_dim + 2 * config.kv_dim, dtype=torch.bfloat16), where,  # type: ignore[arg-type]
            (torch.arange(rows) % 3 == 1).int(), tables,  # type: ignore[arg-type]
        )  # fmt: skip
        self.dtype = dtype
        self.space = BetweenSpace.allocate(config, rows, "cpu")

    def arguments(self, index: int) -> Arguments:
        return self.packed.arguments(index, self.buffers, self.space)

    def handed(self, index: int, name: str) -> Tensor:
        """What programs of a launch handed each other."""
        found = self.space.handed_to(index + 1)[name]
        if name.endswith("squares"):
            return found.view(torch.float32).view(self.case.rows, -1)
        return by_rows(found.view(self.dtype).view(self.case.rows, -1)).float() / self.shrink

    def linear(self, x: Tensor, kind: str, layer: SimpleNamespace) -> Tensor:
        weight = {"qkv": layer.qkv, "o": layer.o, "gu": layer.gate_up, "dn": layer.down}[kind]
        y = x @ widened(weight).t()
        if layer.canvas:
            pair = layer.canvas[kind]
            y = y + (x @ pair.a.float().t() * self.buffers.gate[:, None]) @ pair.b.float().t()
        return y if weight.bias is None else y + weight.bias.float()

    def layer(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """-> the stream behind layer `index`, its input of down, and what went into it, in float32."""
        layer, stream = self.layers[index], self.buffers.stream.float()
        stream = stream + self.linear(self.attended(), "o", layer)
        gate, up = self.linear(normed(stream, layer.ffn_norm), "gu", layer).chunk(2, -1)
        ffn = torch.nn.functional.silu(gate) * up
        return stream + self.linear(ffn, "dn", layer), ffn, stream

    def attended(self) -> Tensor:
        acc, top, total = self.buffers.splits
        acc, top, total = acc.nan_to_num(), top.nan_to_num(-torch.inf, neginf=-torch.inf), total.nan_to_num()
        weight = torch.exp2(top - top.amax(0).clamp_min(-1e30))
        merged = (acc * weight[..., None]).sum(0) / (total * weight).sum(0).clamp_min(1e-9)[..., None]
        return merged.flatten(1)

    def qkv(self, stream: Tensor, index: int) -> Tensor:
        config, layer = self.config, self.layers[index]
        raw = self.linear(normed(stream, layer.attn_norm), "qkv", layer).view(len(stream), -1, config.head_dim)
        turning = config.num_heads + config.num_kv_heads
        left, right = raw[:, :turning].chunk(2, -1)
        if layer.head_norms is not None:
            whole = raw[:, :turning] * torch.rsqrt(raw[:, :turning].square().mean(-1, keepdim=True) + 1e-6)
            gains = torch.cat(
                [layer.head_norms.q[None]] * config.num_heads + [layer.head_norms.k[None]] * config.num_kv_heads
            )
            left, right = (whole * gains.float()).chunk(2, -1)
        cos, sin = self.angles[self.buffers.where.positions.long()].unbind(1)
        turned = torch.cat((left * cos[:, None] - right * sin[:, None], right * cos[:, None] + left * sin[:, None]), -1)
        return torch.cat((turned, raw[:, turning:]), 1)


def normed(x: Tensor, norm: SimpleNamespace) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.gain.float()


def expect_close(found: Tensor, wanted: Tensor, tolerance: float = 1e-2) -> None:
    error = (found.float() - wanted).norm() / wanted.norm()
    assert error < tolerance, f"relative error {error:.2e}"


def by_rows(x: Tensor) -> Tensor:
    """An input as lanes read it, blocks of 32 and eights of rows, in the order of rows."""
    return x.view(-1, len(x) // 8, 8, 4, 8).permute(1, 2, 0, 3, 4).reshape(x.shape)


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
    monkeypatch.setattr(between_shape, "_LONGEST", 1024)
    case = Case(bits=4, dims=(1024, 2048), kv_heads=1, piece=3)
    assert with_slots(case.kind).piece == 3, "as on a chip"  # type: ignore[union-attr]
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


@pytest.mark.parametrize(
    ("dims", "cut"),
    [
        ((1536, 8960), Cut(2, 8, {"o": 2, "gu": 2, "dn": 5, "qkv": 2})),
        ((4096, 12288), Cut(2, 8, {"o": 2, "gu": 2, "dn": 6, "qkv": 2})),
        ((5120, 17408), None),
        ((576, 1536), Cut(1, 6, {"o": 1, "gu": 1, "dn": 1, "qkv": 1})),
        ((2560, 9728), None),
        ((100, 256), None),
    ],
)
def test_how_known_models_are_cut(dims: tuple[int, int], cut: Cut | None) -> None:
    assert cut_for(SimpleNamespace(dim=dims[0], q_dim=dims[0], ffn_dim=dims[1])) == cut  # type: ignore[arg-type]


def coder_kind(rows: int, shared: int, capability: tuple[int, int] = (9, 0)) -> Kind:
    config = ModelConfig("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, qkv_bias=True, tied_head=True)
    return Kind(config, rows, 32, 16, True, 16, Chip(132, shared, capability))


def test_the_ring_is_as_long_as_shared_memory_allows() -> None:
    found = with_slots(coder_kind(16, 232_448))
    assert found is not None
    assert found.slots == 8
    assert shared_bytes(found) <= 232_448


def test_chips_that_cannot_are_left_to_other_kernels() -> None:
    assert fits(coder_kind(32, 232_448))
    assert not fits(coder_kind(32, 101_376)), "half the shared memory"
    assert not fits(coder_kind(32, 232_448, (8, 9))), "no bulk copies"


def test_without_a_compiler_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "find_compiler", lambda: None)
    with pytest.raises(CudaError, match="libnvrtc is missing"):
        compile_binary("between", {}, (9, 0))
