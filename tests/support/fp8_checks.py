"""Checks of fp8 weights and activations against their dequantised values: single linears and whole networks. No pytest
here: see `kernel_checks`.

Rounding to fp8 turns a small input difference d into one of about sqrt(d * step). Two networks that round activations
alike, but keep the stream in bf16 and in fp32, differ after two layers as much as either differs from the network
without rounding (9 % in both cases, in plain torch). Linears are therefore compared on the same inputs, and a whole
network is compared with a reference that rounds in the same places only in fp32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.fp8 import ActivationFormat, supports_fp8_activations
from quicksilver.backends.cuda.kernels.head import HeadRows, HeadWorkspace, propose_rows, read_results
from quicksilver.backends.cuda.kernels.linears import (
    LinearExtras,
    Norm,
    NormInput,
    QkvEpilogue,
    Weight,
    linear_add,
    linear_qkv,
    linear_swiglu,
    square_tiles,
)
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms, RowSlots, angle_table, rotate_and_write
from quicksilver.backends.cuda.kernels.row_kernels import scale_rows
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Rope, Transformer
from tests.support.graph_checks import SMALL, TINIEST, WIDE, causal_batch, eager_forward, model_of
from tests.support.kernel_checks import expect_close, here, shape_config
from tests.support.linear_checks import TRUE_SHAPES, Guarded, LayerShape, adapter_term, partials_of

# The narrowest network that supports fp8 activations.
TINIEST_FP8 = replace(TINIEST, dim=1152, ffn_dim=576, num_heads=1, head_dim=128)
# Relative error of rounding normal values to fp8; typically 2.6e-2.
STEP = 3e-2


def round_groups(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """x (rows, k) -> fp8, and steps (k / group, rows)."""
    wide = x.float().unflatten(-1, (-1, group))
    steps = wide.abs().amax(-1).clamp_min(1e-12) / 448
    return (wide / steps[..., None]).flatten(1).to(torch.float8_e4m3fn), steps.T.contiguous()


def dequantised(rounded: Tensor, steps: Tensor) -> Tensor:
    """fp8 rows times their steps."""
    return (rounded.float().unflatten(-1, (len(steps), -1)) * steps.T[..., None]).flatten(1)


def fp8_weight(n: int, k: int, guarded: Guarded) -> tuple[Weight, Tensor]:
    """A random linear, and its dequantised weights."""
    w = torch.randn(n, k, device=here().device) / k**0.5
    scale = w.abs().amax(-1) / 448
    rounded = (w / scale[:, None]).to(torch.float8_e4m3fn)
    return Weight(_guarded_fp8(rounded, guarded), None, guarded(scale)), rounded.float() * scale[:, None]


def _guarded_fp8(values: Tensor, guarded: Guarded) -> Tensor:
    return guarded(values.view(torch.uint8)).view(torch.float8_e4m3fn)


def _allocate(rows: int, width: int, groups: int, guarded: Guarded) -> tuple[Tensor, Tensor]:
    device = here().device
    empty = torch.zeros(rows, width, device=device).to(torch.float8_e4m3fn)
    return _guarded_fp8(empty, guarded), guarded(torch.zeros(groups, rows, device=device))


def _scaled(x: Tensor, gain: Tensor, guarded: Guarded) -> NormInput:
    tiles = square_tiles(x.shape[1])
    y, steps = _allocate(len(x), x.shape[1], tiles, guarded)
    scaled = NormInput(y, guarded(torch.zeros(tiles, len(x), device=x.device)), steps)
    scale_rows(x, gain, scaled.y, scaled.squares, 1.0, scaled.steps)
    expect_close(dequantised(scaled.y, steps), x.float() * gain.float(), STEP)
    return scaled


def check_fp8_qkv(seed: int, shape: LayerShape, rows: int) -> None:
    """qkv on an fp8 input, adapter, head norms, RoPE and cache write equal the separate steps."""
    torch.manual_seed(seed)
    place, guarded, (dim, _), (_, kv_heads, size) = here(), Guarded(), shape.widths, shape.heads
    x, gain = guarded(place.normal(rows, dim)), guarded(place.normal(dim))
    weight, w = fp8_weight(shape.qkv, dim, guarded)
    scaled, gate = _scaled(x, gain, guarded), (torch.arange(rows, device=place.device) % 3 > 0).float()
    given = dequantised(scaled.y, scaled.steps)  # type: ignore[arg-type]
    term, low = adapter_term(given, shape.qkv, gate, guarded)
    inv_rms = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    raw = ((given @ w.T + low) * inv_rms).to(place.dtype).view(rows, -1, size)
    slots = torch.arange(rows, device=place.device).int()
    where, caches = RowSlots(slots + 7, slots), [place.normal(rows, kv_heads, size) for _ in range(2)]
    wanted_caches = (caches[0].clone(), caches[1].clone())
    angles = angle_table(Rope(shape_config(*shape.heads)).to(place.device), 512)
    epilogue = QkvEpilogue(
        where, angles, (guarded(caches[0]), guarded(caches[1])), HeadNorms(gain[:size], gain[-size:], 1e-6)
    )
    out = guarded(torch.zeros_like(raw))
    linear_qkv(scaled, Norm(gain, 1e-6), weight, out, epilogue, LinearExtras(partials_of(shape, rows, guarded), term))
    rotate_and_write(raw, wanted_caches, where, angles, epilogue.norms)
    expect_close(out, raw, place.tolerance)
    for found, wanted in zip(epilogue.caches, wanted_caches, strict=True):
        expect_close(found, wanted, place.tolerance)
    guarded.check()


def check_fp8_ffn(seed: int, shape: LayerShape, rows: int) -> None:
    """Output, gate and up with SwiGLU, and down, each on the fp8 output of the previous one."""
    torch.manual_seed(seed)
    place, guarded, (dim, ffn), partials = here(), Guarded(), shape.widths, partials_of(shape, rows, Guarded())
    norm, x = Norm(guarded(place.normal(dim)), 1e-6), guarded(place.normal(rows, dim))
    scaled, gate = _scaled(x, norm.gain, guarded), (torch.arange(rows, device=place.device) % 3 > 0).float()
    attended, steps = round_groups(place.normal(rows, shape.heads[0] * shape.heads[2]), shape.heads[2])

    def add(given: tuple[Tensor, Tensor]) -> None:
        """Checks stream += W x and the input of the next norm."""
        weight, w = fp8_weight(dim, given[0].shape[1], guarded)
        term, low = adapter_term(dequantised(*given), dim, gate, guarded)
        wanted = x.float() + dequantised(*given) @ w.T + low
        linear_add(given[0], weight, x, (norm, scaled), LinearExtras(partials, term, given[1]))
        expect_close(x, wanted, place.tolerance)
        expect_close(dequantised(scaled.y, scaled.steps), x.float() * norm.gain.float(), STEP)  # type: ignore[arg-type]
        expect_close(scaled.squares.sum(0), x.float().square().sum(-1), 1e-4)

    add((_guarded_fp8(attended, guarded), guarded(steps)))
    weight, w = fp8_weight(2 * ffn, dim, guarded)
    given = dequantised(scaled.y, scaled.steps)  # type: ignore[arg-type]
    term, low = adapter_term(given, 2 * ffn, gate, guarded)
    inv_rms = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    wanted_gate, wanted_up = ((given @ w.T + low) * inv_rms).chunk(2, dim=-1)
    hidden, hidden_steps = _allocate(rows, ffn, ffn // 64, guarded)
    linear_swiglu(scaled, norm, weight, hidden, LinearExtras(partials, term, hidden_steps))
    expect_close(dequantised(hidden, hidden_steps), torch.nn.functional.silu(wanted_gate) * wanted_up, STEP)
    add((hidden, hidden_steps))
    guarded.check()


def check_fp8_rows_are_batch_invariant(config: ModelConfig) -> None:
    """A sequence has the same values in batches of one, three and nine (16, 16 and 64 rows), bit-identical on a GPU."""
    model, place = model_of(config), here()
    cache = PagedCache.allocate(config, 64, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    runner = GraphExecutor(model, cache, 64, GraphLimits(max_rows=64, max_segments=16, context_len=256, scheme="fp8"))
    alone = runner.launch(causal_batch(1, 5, 20, 16))[:5].clone()
    for count in (3, 9):
        found = runner.launch(causal_batch(count, 5, 20, 16))[:5].clone()
        if place.device == "cuda":
            assert torch.equal(found, alone), f"other values in a batch of {count} sequences"
        expect_close(found, alone, place.tolerance)


def check_fp8(config: ModelConfig, seed: int, has_canvas: bool) -> None:
    """A small batch on fp8 weights equals the eager network with dequantised weights; less closely with fp8
    activations."""
    model, place = model_of(config, seed), here()
    batch = causal_batch(3, 5, 20, 16)
    if has_canvas:
        is_canvas = torch.arange(len(batch.token_ids)) % 5 > 2
        plan = replace(batch.plan, is_canvas=is_canvas)
        batch = replace(batch, mask_index=torch.where(is_canvas, 1, -1), plan=plan, has_canvas=True)
    cache = PagedCache.allocate(config, 64, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    before = (cache.k.clone().float(), cache.v.clone().float())
    runner = GraphExecutor(model, cache, 64, GraphLimits(max_rows=64, max_segments=8, context_len=256, scheme="fp8"))
    assert runner.network.activations is (
        ActivationFormat.FP8_STEPS if supports_fp8_activations(config) else ActivationFormat.HALF
    )
    found = model.norm(runner.launch(batch)[: len(batch.token_ids)])

    def plain(oracle: Transformer) -> Tensor:
        return eager_forward(oracle, batch, PagedCache(before[0].clone(), before[1].clone(), 16))

    exact = plain(with_fp8_weights(model))
    if runner.network.activations is ActivationFormat.HALF:
        expect_close(found, exact, 4e-2 if place.dtype is torch.bfloat16 else 5e-3)
        return
    expect_close(found, exact, 1.2e-1)
    if place.dtype is torch.float32:
        # The oracle's adapter reads what is not rounded.
        expect_close(found, plain(with_fp8_weights(model, rounds_inputs=True)), 8e-2 if has_canvas else 1e-3)


def check_fp8_head(vocab: int, k: int) -> None:
    """An fp8 head equals its dequantised weights; its inputs are fp8 too if K allows it."""
    torch.manual_seed(0)
    place, rows = here(), 16
    hidden, w, gain = place.normal(rows, k), torch.randn(vocab, k, device=place.device) * (3 / k**0.5), place.normal(k)
    scale = w.abs().amax(-1) / 448
    rounded = (w / scale[:, None]).to(torch.float8_e4m3fn)
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * gain.float()
    dtype = torch.float16 if k % 128 else torch.float8_e4m3fn
    if dtype.itemsize == 1:
        normed = dequantised(*round_groups(normed, k))
    logits = normed @ (rounded.float() * scale[:, None]).T
    space = HeadWorkspace.allocate(rounded, rows, dtype)
    index = torch.arange(rows, device=place.device).int()
    results = propose_rows(hidden, Norm(gain, 1e-6), Weight(rounded, scale=scale), HeadRows(index), space)
    token_ids, confidence, _, is_finite = read_results(results)
    same = token_ids == logits.argmax(-1)
    assert float(same.float().mean()) >= 0.9, token_ids
    expect_close(confidence[same], logits.softmax(-1).amax(-1)[same], 1e-2)
    assert bool(is_finite.all())


class _Fp8Inputs(nn.Module):
    """A linear whose input is rounded to fp8 with one step per `group` columns."""

    def __init__(self, linear: nn.Linear, group: int) -> None:
        super().__init__()
        self.linear, self.group = linear, group

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(dequantised(*round_groups(x, self.group)))


def with_fp8_weights(model: Transformer, *, rounds_inputs: bool = False) -> Transformer:
    """The same network in fp32 with dequantised fp8 weights."""
    rounded = copy.deepcopy(model).float()
    for layer in rounded.layers:
        for name, group in (("qkv", 128), ("o", 128), ("gate_up", 128), ("down", 64)):
            linear: nn.Linear = getattr(layer, name)
            scale = linear.weight.abs().amax(-1, keepdim=True) / 448
            linear.weight.data = (linear.weight / scale).to(torch.float8_e4m3fn).float() * scale
            if rounds_inputs:
                setattr(layer, name, _Fp8Inputs(linear, group))
    return rounded


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for name in ("1.5B", "8B"):
        for rows in (16, 32, 64):
            shape = TRUE_SHAPES[name]
            yield f"fp8 qkv {name} rows={rows}", lambda s=shape, r=rows: check_fp8_qkv(0, s, r)
            yield f"fp8 ffn {name} rows={rows}", lambda s=shape, r=rows: check_fp8_ffn(0, s, r)
    for k in (576, 1536):
        yield f"head fp8 {k}", lambda k=k: check_fp8_head(49152, k)
    for config in (SMALL, WIDE):
        for has_canvas in (False, True):
            name = f"network fp8 {config.family} canvas={has_canvas}"
            yield name, lambda c=config, h=has_canvas: check_fp8(c, 0, h)
    yield "network fp8 rows ignore their number", lambda: check_fp8_rows_are_batch_invariant(WIDE)
