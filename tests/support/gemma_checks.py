"""Checks of DiffusionGemma on CUDA kernels against plain torch. No pytest here: see `kernel_checks`."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu

from quicksilver.backends.base import Outcome, Sequence, Work
from quicksilver.backends.batch import Batch, build_batch
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.canvas_executor import CanvasExecutor
from quicksilver.backends.cuda.canvas_rows import fits_canvas_head
from quicksilver.backends.cuda.kernels.attention import RowTables, cut_tiles
from quicksilver.backends.cuda.kernels.gemma_weights import weight_of
from quicksilver.backends.cuda.kernels.window_attention import (
    TILE_ROWS,
    WindowShape,
    WindowWorkspace,
    attend_window,
)
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.core import DecodeParams, Request
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.model.attention import PagedCache, RowPlan, SdpaAttend, heads_of
from quicksilver.model.config import ModelConfig
from quicksilver.model.experts import MoeConfig
from quicksilver.model.gemma import DiffusionGemma
from quicksilver.model.gemma_config import GemmaConfig
from quicksilver.model.moe import set_expert_kernel
from tests.support.dialects import dialect_decoders, tiny_dialect
from tests.support.kernel_checks import Place, expect_close, here, random_plan, relative_error
from tests.support.tiny import TINY, decode_params, finish_all, random_weights

TINY_GEMMA = replace(
    TINY, head_dim=16, dialect=tiny_dialect("diffusion-gemma"), vocab_size=97,
    moe=MoeConfig(6, 2, 16, activation="gelu_tanh"),
    gemma=GemmaConfig((False, True), 11, full_head_dim=32, full_kv_heads=1),
)  # fmt: skip
# The published widths, with few layers and a small vocabulary.
WIDE_GEMMA = replace(
    TINY_GEMMA, num_layers=3, dim=2816, ffn_dim=2112, num_heads=16, num_kv_heads=8, head_dim=256, context_len=4096,
    vocab_size=20_000, moe=MoeConfig(128, 8, 704, activation="gelu_tanh"),
    gemma=GemmaConfig((False, False, True), 300, full_head_dim=512, full_kv_heads=2),
    dialect=replace(tiny_dialect("diffusion-gemma", 20_000), default=decode_params("canvas", canvas_len=256).decoder),
)  # fmt: skip


def gemma_of(config: ModelConfig, seed: int = 0, place: Place | None = None) -> DiffusionGemma:
    place = place or here()
    if config.dim < 1024:
        model = random_weights(config, seed)
    else:
        torch.manual_seed(seed)
        with torch.device(place.device):
            model = DiffusionGemma(config)
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
            # Blocks add little to the stream: random ones of full size would amplify any rounding.
            for layer in model.layers:
                layer.attn_out_norm.weight.fill_(0.1)  # type: ignore[union-attr, operator]
                layer.out_norm.weight.fill_(0.1)  # type: ignore[union-attr, operator]
    assert isinstance(model, DiffusionGemma)
    return model.to(place.device, place.dtype).eval().requires_grad_(False)


class Watched(CanvasExecutor):
    """Keeps the hidden states of the last forward."""

    hidden: Tensor

    def launch(self, batch: Batch, works: Seq[Work]) -> Tensor:
        self.hidden = super().launch(batch, works)
        return self.hidden


def executor_of(model: DiffusionGemma, cache: PagedCache, row_step: int, scheme: str = "bfloat16") -> Watched:
    limits = GraphLimits(8 * row_step, 16, model.config.context_len, scheme, prompt_rows=4096)
    return Watched(model, cache, 64, limits, row_step=row_step)


def check_window_attention(heads: tuple[int, int, int], window: int, seed: int) -> None:
    """Every kind of row, with scattered pages, equals masked attention in plain torch."""
    rng, place, (num_heads, kv_heads, head_dim) = random.Random(seed), here(), heads
    torch.manual_seed(seed)
    plan = random_plan(rng, 160, 16).to(place.device)
    num_rows = len(plan.positions)
    width = kv_heads * head_dim + 32  # other layers have larger heads
    store = torch.randn(2, 160 * 16, 1, width, device=place.device).to(place.dtype)
    cache = PagedCache(store[:1].clone(), store[1:].clone(), 16)
    q = place.normal(num_rows, num_heads, head_dim) * head_dim**-0.5
    k, v = place.normal(num_rows, kv_heads, head_dim), place.normal(num_rows, kv_heads, head_dim)
    attend = SdpaAttend(plan, cache, scale=1.0)
    wanted = attend.attend(attend.make_views(plan, window), 0, q, k, v)
    shape, tables = WindowShape(num_heads, kv_heads, head_dim, window), _tables(plan, place)
    for name, store in (("k", cache.k), ("v", cache.v)):
        written = heads_of(store[0], k)[plan.slots[plan.slots >= 0]]
        assert torch.equal(written, (k if name == "k" else v)[plan.slots >= 0])
    for padded in (num_rows, 600):  # four programs along the keys, and one
        if padded < num_rows:
            continue
        qkv = torch.cat((q, k, v), dim=1)
        whole = torch.zeros(padded, *qkv.shape[1:], device=place.device, dtype=place.dtype)
        whole[:num_rows] = qkv
        workspace = WindowWorkspace.allocate((shape,), padded, whole)
        slots = torch.full((padded,), -1, device=place.device, dtype=torch.int32)
        slots[:num_rows] = plan.slots
        found = attend_window(whole, (cache.k[0], cache.v[0]), tables, slots, shape, workspace).values
        expect_close(found[:num_rows].view_as(wanted), wanted, place.tolerance)
        assert not bool(found[num_rows:].any())


def _tables(plan: RowPlan, place: Place) -> RowTables:
    segments = [(segment.row_start, segment.row_end) for segment in plan.segments]
    tiles = torch.tensor([*cut_tiles(segments, TILE_ROWS), (0, 0, 0)], dtype=torch.int32, device=place.device)
    most = max(len(segment.page_ids) for segment in plan.segments)
    pages = torch.zeros(len(plan.segments), most, dtype=torch.int32, device=place.device)
    for line, segment in zip(pages, plan.segments, strict=True):
        line[: len(segment.page_ids)] = segment.page_ids
    columns = (plan.prefix_end.int(), plan.span_start.int(), plan.span_end.int())
    return RowTables(*columns, tiles, pages, 16)


def canvas_work(config: ModelConfig, request: str, num_context: int, num_cached: int, params: DecodeParams) -> Work:
    """The first forward of a canvas after `num_context` tokens; pages are those from 40 * request on."""
    tokens = tuple((7 * int(request) + 13 * i) % (config.vocab_size - 1) for i in range(num_context))
    decoder = make_decoder(params.decoder, config.dialect, params.seed)
    sequence = Sequence(Request(request, tokens, params), decoder, dialect=config.dialect)
    sequence.pages, sequence.kv_len = list(range(40 * int(request), 40 * int(request) + 40)), num_cached
    sequence.open_canvas()
    return Work(sequence, num_cached, num_context, sequence.tail)


def check_steps(config: ModelConfig, canvas_len: int, scheme: str = "bfloat16", num_steps: int = 2) -> None:
    """Prompts without and with a canvas, then steps of two canvases at once: hidden states, keys, and values equal
    those of plain torch, and so do proposals and soft embeddings where rounding allows it."""
    place, model = here(), gemma_of(config)
    params = decode_params("canvas", canvas_len=canvas_len, steps=8, temperature=1.0, seed=3, stop_entropy=0.0)
    plain = copy.deepcopy(model)
    if scheme == "fp8":
        _round_to_fp8(plain)
    caches = [PagedCache.allocate(config, 160, 16, place.device, place.dtype) for _ in range(3)]
    exact_model = copy.deepcopy(plain).float()
    exact = TorchBackend(exact_model, PagedCache(caches[2].k.float(), caches[2].v.float(), 16), 64)
    eager = TorchBackend(plain, caches[1], 64)
    executor = executor_of(model, caches[0], canvas_len, scheme)
    first, second = canvas_work(config, "0", 70, 0, params), canvas_work(config, "1", 37, 0, params)
    prompt = Work(first.sequence, 0, 45, None)
    first = replace(first, start=45)
    for works in ([prompt], [first, second]):
        _compare(works, executor, eager, exact, scheme)
    for work in (first, second):
        work.sequence.kv_len = work.end
    for _ in range(num_steps):
        works = [Work(w.sequence, w.end, w.end, w.sequence.tail) for w in (first, second)]
        for work, outcome in zip(works, _compare(works, executor, eager, exact, scheme), strict=True):
            assert outcome is not None
            assert work.sequence.canvas is not None
            work.sequence.canvas = work.sequence.decoder.decide(work.sequence.canvas, outcome.proposal).canvas
    error = relative_error(executor.cache.k, exact.cache.k)
    assert error < _allowed(relative_error(eager.cache.k, exact.cache.k), scheme), error


def _allowed(eager_error: float, scheme: str) -> float:
    """Random weights amplify rounding: kernels may lose as much as eager torch does. A
    difference before a rounding to fp8 is larger after it."""
    if scheme == "fp8":
        return 1e-2 if here().dtype is torch.float32 else 0.1 + eager_error
    return 1e-4 if here().dtype is torch.float32 else max(4e-2, 1.5 * eager_error)


def _compare(
    works: list[Work], executor: Watched, eager: TorchBackend, exact: TorchBackend, scheme: str
) -> list[Outcome | None]:
    hidden = [backend._forward(works).float() for backend in (eager, exact)]
    wanted = eager.run(works)
    found = executor.run(works)
    rows = executor.hidden[build_batch(works, executor.cache.page_size).proposing].float()
    if not len(rows):
        assert found == wanted == [None] * len(works)
        return found
    error = relative_error(rows, hidden[1])
    assert error < _allowed(relative_error(hidden[0], hidden[1]), scheme), error
    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        assert other is not None
        assert bool(one.proposal.is_finite.all())
        if here().dtype is torch.float32 and scheme == "bfloat16":
            assert np.array_equal(one.proposal.token_ids, other.proposal.token_ids)
            assert np.array_equal(one.proposal.sampled_ids, other.proposal.sampled_ids)
            assert np.allclose(one.proposal.confidence, other.proposal.confidence, atol=1e-4)
            assert np.allclose(one.proposal.entropy, other.proposal.entropy, atol=1e-4)
            expect_close(one.proposal.soft, other.proposal.soft, 1e-4)
    return found


def _round_to_fp8(model: DiffusionGemma) -> None:
    """Matrices, and the inputs of linears and experts, become the values that the kernels round them to. Router and
    head keep 16 bits."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and not any(part in name for part in ("router", "tokens", "head")):
            weight = weight_of(parameter, "fp8")
            assert weight.scale is not None
            parameter.data = (weight.w.float() * weight.scale[..., None]).to(parameter.dtype)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not model.head:
            module.register_forward_pre_hook(lambda _, given: (_rounded(given[0]),))
    set_expert_kernel(model, rounded_experts)


def _rounded(x: Tensor) -> Tensor:
    """In fp8 with a scale per row, and back."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp_min(1e-12) / 448
    return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def rounded_experts(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, activation: str
) -> Tensor:
    """Experts of rounded rows; the activated product is rounded too."""
    assert activation == "gelu_tanh"
    out, x = torch.zeros(x.shape, device=x.device), _rounded(x).float()
    for expert in chosen.unique().tolist():
        row, place = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (x[row] @ gate_up[expert].float().t()).chunk(2, dim=-1)
        active = _rounded(gelu(gate, approximate="tanh") * up)
        out.index_add_(0, row, active @ down[expert].float().t() * weights[row, place, None])
    return out


class Compared(CanvasExecutor):
    """Compares every outcome with plain torch on the same cache. `faults` are not raised: the engine would run
    each request again on its own."""

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        if not hasattr(self, "faults"):
            self.faults, self.num_rare = list[str](), 0
        wanted, found = self.eager.run(works), super().run(works)
        for work, one, other in zip(works, found, wanted, strict=True):
            self.num_rare += not fits_canvas_head(work.sequence)
            if (one is None) != (other is None):
                self.faults.append(f"{work.sequence.id}: {one} is not {other}")
            if one is None or other is None:
                continue
            same = np.array_equal(one.proposal.token_ids, other.proposal.token_ids)
            same &= np.array_equal(one.proposal.sampled_ids, other.proposal.sampled_ids)
            close = np.allclose(one.proposal.entropy, other.proposal.entropy, atol=1e-3)
            if not same or not close:
                self.faults.append(f"{work.sequence.id}: another proposal")
        return found


def check_requests(config: ModelConfig) -> None:
    """Requests of every kind in one engine: greedy, sampled, filtered, penalised, with banned tokens; prompts shorter
    and longer than the window, and one whose pages are cached already."""
    model = gemma_of(config)
    engine = build_engine(model, "checked", EngineConfig(num_pages=64, max_rows=96))
    limits = GraphLimits(96, 8, config.context_len)
    executor = engine.backend = Compared(model, engine.backend.cache, 64, limits, row_step=16)  # type: ignore[attr-defined]
    every = dialect_decoders("diffusion-gemma", 9)
    every["banned"] = replace(every["canvas"], temperature=0.7, banned_ids=(3, 5, 60))
    for i, (label, params) in enumerate(every.items()):
        engine.add(Request(label, tuple(range(3, 10 + 9 * i)), params))
    finish_all(engine)
    assert not executor.faults, executor.faults
    assert executor.num_rare
    assert executor.num_rare < engine.stats().steps * len(every)
    engine.add(Request("again", tuple(range(3, 37)), every["canvas"]))
    finish_all(engine)
    assert not executor.faults, executor.faults
    assert engine.stats().cached_tokens >= 32
    assert engine.stats().failures == 0
