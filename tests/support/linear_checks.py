"""Checks of a layer's linears and of the embedding against plain torch, with guard bands around all tensors. No pytest
here: see `kernel_checks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.linears import (
    LinearExtras,
    LowRankTerm,
    Norm,
    NormInput,
    QkvEpilogue,
    Weight,
    ax_splits,
    linear_add,
    linear_qkv,
    linear_swiglu,
    partial_sums_size,
    square_tiles,
)
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms, RowSlots, angle_table, rotate_and_write
from quicksilver.backends.cuda.kernels.round_linears import add_norm, linear_sums, linear_swiglu_tiles, num_splits
from quicksilver.backends.cuda.kernels.row_kernels import embed, scale_rows
from quicksilver.backends.cuda.kernels.weight_streaming import PartialSums, pick_gate_block_n
from quicksilver.model.transformer import Rope
from tests.support.kernel_checks import expect_close, here, shape_config


class Guarded:
    """Allocates tensors between guard bands. NaN that a kernel reads from a band shows in the results; `check` finds
    writes into a band."""

    BAND = 4096

    def __init__(self) -> None:
        self._stores: list[tuple[Tensor, Tensor]] = []

    def __call__(self, values: Tensor) -> Tensor:
        size = values.numel()
        store = torch.full((size + 2 * self.BAND,), 77, dtype=values.dtype, device=values.device)
        if values.is_floating_point():
            store.fill_(torch.nan)
        inner = store[self.BAND : self.BAND + size]
        inner.copy_(values.flatten())
        self._stores.append((store[: self.BAND], store[self.BAND + size :]))
        return inner.view(values.shape)

    def check(self) -> None:
        for bands in self._stores:
            for band in bands:
                is_intact = band.isnan() if band.is_floating_point() else band == 77
                assert bool(is_intact.all()), "a kernel wrote outside its tensors"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Widths of one layer: (dim, ffn), (heads, kv_heads, head_dim)."""

    widths: tuple[int, int]
    heads: tuple[int, int, int]

    @property
    def qkv(self) -> int:
        return (self.heads[0] + 2 * self.heads[1]) * self.heads[2]


TRUE_SHAPES = {
    "135M": LayerShape((576, 1536), (9, 3, 64)),
    "1.5B": LayerShape((1536, 8960), (12, 2, 128)),
    "8B": LayerShape((4096, 12288), (32, 8, 128)),
}


def partials_of(shape: LayerShape, rows: int, guarded: Guarded) -> PartialSums:
    dim, ffn = shape.widths
    tiles, gates = square_tiles(dim), pick_gate_block_n(ffn)
    shapes = [(shape.qkv // shape.heads[2], shape.heads[2], dim), (ffn // gates, 2 * gates, dim)]
    shapes += [(tiles, dim // tiles, shape.heads[0] * shape.heads[2]), (tiles, dim // tiles, ffn)]
    empty = PartialSums.allocate(partial_sums_size(shapes, rows), here().device)
    return PartialSums(guarded(empty.sums), guarded(empty.arrived))


def adapter_term(x: Tensor, out_dim: int, gate: Tensor, guarded: Guarded) -> tuple[LowRankTerm, Tensor]:
    """A rank-16 adapter term on x, and its value in fp32 before the norm's division."""
    place, rank = here(), 16
    a, b = guarded(place.normal(rank, x.shape[1]) / x.shape[1] ** 0.5), guarded(place.normal(out_dim, rank) / 4)
    low = guarded(torch.zeros(1 + ax_splits(x.shape[1]), len(x), rank, device=place.device))
    wanted = ((x.float() @ a.float().T) * gate[:, None]) @ b.float().T
    return LowRankTerm(a, b, low, gate, torch.zeros(2, dtype=torch.int32, device=place.device)), wanted


def _scaled(x: Tensor, gain: Tensor, guarded: Guarded) -> tuple[NormInput, Tensor]:
    """The input of a linear after a norm, and 1 / RMS."""
    squares = guarded(torch.zeros(square_tiles(x.shape[1]), len(x), device=x.device))
    scaled = NormInput(guarded(torch.zeros_like(x)), squares)
    scale_rows(x, gain, scaled.y, scaled.squares)
    return scaled, torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)


def check_qkv(seed: int, shape: LayerShape, rows: int, has_norms: bool) -> None:
    """Norm, qkv, adapter, bias, head norms, RoPE and cache write equal the separate steps; guard bands are intact."""
    torch.manual_seed(seed)
    place, guarded, (dim, _), (_, kv_heads, size) = here(), Guarded(), shape.widths, shape.heads
    x, w, bias = (
        guarded(place.normal(rows, dim)),
        guarded(place.normal(shape.qkv, dim) / dim**0.5),
        place.normal(shape.qkv),
    )
    gain, gate = guarded(place.normal(dim)), (torch.arange(rows, device=place.device) % 3 > 0).float()
    scaled, shrink = _scaled(x, gain, guarded)
    term, low = adapter_term(scaled.y, shape.qkv, gate, guarded)
    raw = ((scaled.y.float() @ w.float().T + low) * shrink + bias.float()).to(place.dtype).view(rows, -1, size)
    where = RowSlots(
        guarded(torch.randint(0, 500, (rows,), device=place.device).int()),
        guarded(torch.where(torch.arange(rows) % 3 > 0, torch.randperm(2 * rows)[:rows], -1).int().to(place.device)),
    )
    angles = angle_table(Rope(shape_config(*shape.heads)).to(place.device), 512)
    norms = HeadNorms(guarded(place.normal(size)), guarded(place.normal(size)), 1e-6) if has_norms else None
    wanted_caches = tuple(place.normal(2 * rows, kv_heads, size) for _ in range(2))
    caches = (guarded(wanted_caches[0]), guarded(wanted_caches[1]))
    out, parts = guarded(torch.zeros_like(raw)), partials_of(shape, rows, guarded)
    turn = QkvEpilogue(where, angles, caches, norms)
    for _ in range(2):  # twice: the first run must reset the counters
        term.ready.zero_()
        linear_qkv(scaled, Norm(gain, 1e-6), Weight(w, guarded(bias)), out, turn, LinearExtras(parts, term))
    rotate_and_write(raw, wanted_caches, where, angles, norms)
    expect_close(out, raw, place.tolerance)
    for found, wanted in zip(caches, wanted_caches, strict=True):
        expect_close(found, wanted, place.tolerance)
    guarded.check()


def check_ffn(seed: int, shape: LayerShape, rows: int) -> None:
    """Gate and up with SwiGLU, then down onto the residual stream with the next norm's input; guard bands are
    intact."""
    torch.manual_seed(seed)
    place, guarded, (dim, ffn) = here(), Guarded(), shape.widths
    x, gain, after = guarded(place.normal(rows, dim)), guarded(place.normal(dim)), guarded(place.normal(dim))
    gate_up, down = guarded(place.normal(2 * ffn, dim) / dim**0.5), guarded(place.normal(dim, ffn) / ffn**0.5)
    gate, parts = (torch.arange(rows, device=place.device) % 3 > 0).float(), partials_of(shape, rows, guarded)
    scaled, shrink = _scaled(x, gain, guarded)
    term, low = adapter_term(scaled.y, 2 * ffn, gate, guarded)
    wanted_gate, wanted_up = ((scaled.y.float() @ gate_up.float().T + low) * shrink).chunk(2, dim=-1)
    hidden = guarded(torch.zeros(rows, ffn, device=place.device, dtype=place.dtype))
    linear_swiglu(scaled, Norm(gain, 1e-6), Weight(gate_up), hidden, LinearExtras(parts, term))
    expect_close(hidden, torch.nn.functional.silu(wanted_gate) * wanted_up, place.tolerance)
    term, low = adapter_term(hidden, dim, gate, guarded)
    wanted = x.float() + hidden.float() @ down.float().T + low
    linear_add(hidden, Weight(down), x, (Norm(after, 1e-6), scaled), LinearExtras(parts, term))
    expect_close(x, wanted, place.tolerance)
    expect_close(scaled.y, x.float() * after.float(), place.tolerance)
    expect_close(scaled.squares.sum(0), x.float().square().sum(-1), 1e-4)
    guarded.check()


def check_round_linears(seed: int, shape: LayerShape, rows: int) -> None:
    """The linears of rounds equal plain torch; guard bands are intact."""
    torch.manual_seed(seed)
    place, guarded, (dim, ffn) = here(), Guarded(), shape.widths
    x, gain = guarded(place.normal(rows, dim)), guarded(place.normal(dim))
    gate_up, down = guarded(place.normal(2 * ffn, dim) / dim**0.5), guarded(place.normal(dim, ffn) / ffn**0.5)
    wanted_gate, wanted_up = (x.float() @ gate_up.float().T).chunk(2, dim=-1)
    hidden = guarded(torch.zeros(rows, ffn, device=place.device, dtype=place.dtype))
    linear_swiglu_tiles(x, Weight(gate_up), hidden)
    expect_close(hidden, torch.nn.functional.silu(wanted_gate) * wanted_up, place.tolerance)
    sums = guarded(torch.zeros(num_splits(dim, ffn) * rows * dim, device=place.device))
    found = linear_sums(hidden, Weight(down), sums)
    product = hidden.float() @ down.float().T
    expect_close(found.sum(0), product, 1e-3)
    normed, wanted = guarded(torch.zeros_like(x)), x.float() + product
    add_norm(found, x, Norm(gain, 1e-6), normed)
    expect_close(x, wanted, place.tolerance)
    inv_rms = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    expect_close(normed, x.float() * inv_rms * gain.float(), place.tolerance)
    guarded.check()


def check_rotated_sums(seed: int, shape: LayerShape, rows: int, has_norms: bool, has_bias: bool) -> None:
    """The total of the splits of qkv, rotated and written, equals the separate steps; guard bands are intact."""
    torch.manual_seed(seed)
    place, guarded, (_, kv_heads, size) = here(), Guarded(), shape.heads
    sums = guarded(torch.randn(3, rows, shape.qkv, device=place.device))
    bias = place.normal(shape.qkv) if has_bias else None
    total = sums.sum(0) if bias is None else sums.sum(0) + bias.float()
    raw = total.to(place.dtype).view(rows, -1, size)
    positions = torch.randint(0, 500, (rows,), device=place.device).int()
    slots = torch.where(torch.arange(rows) % 3 > 0, torch.randperm(2 * rows)[:rows], -1).int().to(place.device)
    where, angles = RowSlots(positions, slots), angle_table(Rope(shape_config(*shape.heads)).to(place.device), 512)
    norms = HeadNorms(place.normal(size), place.normal(size), 1e-6) if has_norms else None
    wanted_caches = tuple(place.normal(2 * rows, kv_heads, size) for _ in range(2))
    caches = (guarded(wanted_caches[0]), guarded(wanted_caches[1]))
    out = guarded(torch.zeros_like(raw))
    rotate_and_write(out, caches, where, angles, norms, sums=(sums, None if bias is None else guarded(bias)))
    rotate_and_write(raw, wanted_caches, where, angles, norms)
    expect_close(out, raw, place.tolerance)
    for found, wanted in zip(caches, wanted_caches, strict=True):
        expect_close(found, wanted, place.tolerance)
    guarded.check()


def check_layer_is_batch_invariant(seed: int, shape: LayerShape) -> None:
    """A row has the same bits in batches of 16, 32 and 64 rows, in every linear."""
    torch.manual_seed(seed)
    place, (dim, ffn), (_, kv_heads, size) = here(), shape.widths, shape.heads
    x, attended = place.normal(64, dim), place.normal(64, shape.heads[0] * size)
    gain, bias = place.normal(dim), place.normal(shape.qkv)
    ws = [
        place.normal(n, k) / k**0.5 for n, k in ((shape.qkv, dim), (dim, attended.shape[1]), (2 * ffn, dim), (dim, ffn))
    ]
    angles = angle_table(Rope(shape_config(*shape.heads)).to(place.device), 64)
    norms = HeadNorms(place.normal(size), place.normal(size), 1e-6)

    def layer(rows: int) -> list[Tensor]:
        guarded, norm = Guarded(), Norm(gain, 1e-6)
        stream, parts = x[:rows].clone(), partials_of(shape, rows, guarded)
        scaled, _ = _scaled(stream, gain, guarded)
        qkv = place.normal(rows, shape.qkv // size, size)
        where = RowSlots(torch.arange(rows, device=place.device).int(), torch.arange(rows, device=place.device).int())
        caches = (place.normal(rows, kv_heads, size), place.normal(rows, kv_heads, size))
        linear_qkv(
            scaled, norm, Weight(ws[0], bias), qkv, QkvEpilogue(where, angles, caches, norms), LinearExtras(parts)
        )
        linear_add(attended[:rows].contiguous(), Weight(ws[1]), stream, (norm, scaled), LinearExtras(parts))
        hidden = linear_swiglu(scaled, norm, Weight(ws[2]), place.normal(rows, ffn), LinearExtras(parts))
        linear_add(hidden, Weight(ws[3]), stream, (norm, scaled), LinearExtras(parts))
        return [tensor[:16].clone() for tensor in (qkv, caches[0], hidden, stream, scaled.squares.T)]

    few = layer(16)
    for rows in (32, 64):
        for name, one, other in zip(("qkv", "cache", "ffn", "stream", "squares"), few, layer(rows), strict=True):
            if place.device == "cuda":
                assert torch.equal(one, other), f"{name}: {rows} rows give other values than 16"
            expect_close(other, one, place.tolerance)  # numpy's matmul is not batch-invariant


def check_embed_clamps_masks() -> None:
    """A canvas longer than the mask table repeats the last embedding; nothing after the table is read."""
    place, guarded = here(), Guarded()
    table, masks = guarded(place.normal(50, 64)), guarded(place.normal(8, 64))
    index = torch.arange(-1, 63, device=place.device).int()
    out = guarded(torch.zeros(64, 64, device=place.device, dtype=place.dtype))
    embed(table, masks, torch.zeros_like(index), index, out)
    assert torch.equal(out[1:], masks[index[1:].long().clamp(max=7)])
    guarded.check()


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for name, shape in TRUE_SHAPES.items():
        for rows in (16, 64):
            yield f"qkv {name} rows={rows}", lambda s=shape, r=rows, n=name == "8B": check_qkv(0, s, r, n)
            yield f"ffn {name} rows={rows}", lambda s=shape, r=rows: check_ffn(0, s, r)
        for rows in (64, 128):
            yield f"round linears {name} rows={rows}", lambda s=shape, r=rows: check_round_linears(0, s, r)
            yield f"round qkv {name} rows={rows}", lambda s=shape, r=rows: check_rotated_sums(0, s, r, r > 64, True)
        yield f"layer {name} is batch-invariant", lambda s=shape: check_layer_is_batch_invariant(0, s)
    yield "embed clamps masks", check_embed_clamps_masks
