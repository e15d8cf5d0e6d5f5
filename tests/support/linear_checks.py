"""The linears of a layer and the embedding against plain torch, every tensor between walls. No pytest here: see
`kernel_checks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quicksilver.backends.cuda.kernels.linears import (
    Beside,
    LowRankTerm,
    Norm,
    Rotation,
    Scaled,
    Weight,
    low_parts,
    part_floats,
    project_add,
    project_qkv,
    project_swiglu,
    square_tiles,
)
from quicksilver.backends.cuda.kernels.rope_kernel import HeadNorms, RowSlots, angle_table, rotate_and_write
from quicksilver.backends.cuda.kernels.row_kernels import embed, scale_rows
from quicksilver.backends.cuda.kernels.weight_streaming import Parts, pick_gate_columns
from quicksilver.model.rope import Rope
from tests.support.kernel_checks import expect_close, here, shape_config


class Walled:
    """Tensors between bands that no kernel may touch: NaN around what is read would show in the results, and `check`
    finds what was written there."""

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
                is_whole = band.isnan() if band.is_floating_point() else band == 77
                assert bool(is_whole.all()), "a kernel wrote outside its tensors"


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


def parts_of(shape: LayerShape, rows: int, walled: Walled) -> Parts:
    dim, ffn = shape.widths
    tiles, gates = square_tiles(dim), pick_gate_columns(ffn)
    shapes = [(shape.qkv // shape.heads[2], shape.heads[2], dim), (ffn // gates, 2 * gates, dim)]
    shapes += [(tiles, dim // tiles, shape.heads[0] * shape.heads[2]), (tiles, dim // tiles, ffn)]
    empty = Parts.allocate(part_floats(shapes, rows), here().device)
    return Parts(walled(empty.sums), walled(empty.arrived))


def low_term(x: Tensor, out_dim: int, gate: Tensor, walled: Walled) -> tuple[LowRankTerm, Tensor]:
    """A rank-16 term on x, and its product in fp32 (before any norm's divisor)."""
    place, rank = here(), 16
    a, b = walled(place.normal(rank, x.shape[1]) / x.shape[1] ** 0.5), walled(place.normal(out_dim, rank) / 4)
    low = walled(torch.zeros(1 + low_parts(x.shape[1]), len(x), rank, device=place.device))
    wanted = ((x.float() @ a.float().T) * gate[:, None]) @ b.float().T
    return LowRankTerm(a, b, low, gate, torch.zeros(2, dtype=torch.int32, device=place.device)), wanted


def _scaled(x: Tensor, gain: Tensor, walled: Walled) -> tuple[Scaled, Tensor]:
    """The kernels' input of a normed linear, and the norm's divisor."""
    squares = walled(torch.zeros(square_tiles(x.shape[1]), len(x), device=x.device))
    scaled = Scaled(walled(torch.zeros_like(x)), squares)
    scale_rows(x, gain, scaled.y, scaled.squares)
    return scaled, torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)


def check_qkv(seed: int, shape: LayerShape, rows: int, has_norms: bool) -> None:
    """Norm, qkv, adapter, bias, head norms, rotation and cache write equal the same steps, walls intact."""
    torch.manual_seed(seed)
    place, walled, (dim, _), (_, kv_heads, size) = here(), Walled(), shape.widths, shape.heads
    x, w, bias = (
        walled(place.normal(rows, dim)),
        walled(place.normal(shape.qkv, dim) / dim**0.5),
        place.normal(shape.qkv),
    )
    gain, gate = walled(place.normal(dim)), (torch.arange(rows, device=place.device) % 3 > 0).float()
    scaled, shrink = _scaled(x, gain, walled)
    term, low = low_term(scaled.y, shape.qkv, gate, walled)
    raw = ((scaled.y.float() @ w.float().T + low) * shrink + bias.float()).to(place.dtype).view(rows, -1, size)
    where = RowSlots(
        walled(torch.randint(0, 500, (rows,), device=place.device).int()),
        walled(torch.where(torch.arange(rows) % 3 > 0, torch.randperm(2 * rows)[:rows], -1).int().to(place.device)),
    )
    angles = angle_table(Rope(shape_config(*shape.heads)).to(place.device), 512)
    norms = HeadNorms(walled(place.normal(size)), walled(place.normal(size)), 1e-6) if has_norms else None
    wanted_caches = tuple(place.normal(2 * rows, kv_heads, size) for _ in range(2))
    caches = (walled(wanted_caches[0]), walled(wanted_caches[1]))
    out, parts = walled(torch.zeros_like(raw)), parts_of(shape, rows, walled)
    turn = Rotation(where, angles, caches, norms)
    for _ in range(2):  # the second finds the counters as the first left them
        term.ready.zero_()
        project_qkv(scaled, Norm(gain, 1e-6), Weight(w, walled(bias)), out, turn, Beside(parts, term))
    rotate_and_write(raw, wanted_caches, where, angles, norms)
    expect_close(out, raw, place.tolerance)
    for found, wanted in zip(caches, wanted_caches, strict=True):
        expect_close(found, wanted, place.tolerance)
    walled.check()


def check_ffn(seed: int, shape: LayerShape, rows: int) -> None:
    """gate and up with SwiGLU, then down onto the residual stream with the next norm's input; walls intact."""
    torch.manual_seed(seed)
    place, walled, (dim, ffn) = here(), Walled(), shape.widths
    x, gain, after = walled(place.normal(rows, dim)), walled(place.normal(dim)), walled(place.normal(dim))
    gate_up, down = walled(place.normal(2 * ffn, dim) / dim**0.5), walled(place.normal(dim, ffn) / ffn**0.5)
    gate, parts = (torch.arange(rows, device=place.device) % 3 > 0).float(), parts_of(shape, rows, walled)
    scaled, shrink = _scaled(x, gain, walled)
    term, low = low_term(scaled.y, 2 * ffn, gate, walled)
    wanted_gate, wanted_up = ((scaled.y.float() @ gate_up.float().T + low) * shrink).chunk(2, dim=-1)
    hidden = walled(torch.zeros(rows, ffn, device=place.device, dtype=place.dtype))
    project_swiglu(scaled, Norm(gain, 1e-6), Weight(gate_up), hidden, Beside(parts, term))
    expect_close(hidden, torch.nn.functional.silu(wanted_gate) * wanted_up, place.tolerance)
    term, low = low_term(hidden, dim, gate, walled)
    wanted = x.float() + hidden.float() @ down.float().T + low
    project_add(hidden, Weight(down), x, (Norm(after, 1e-6), scaled), Beside(parts, term))
    expect_close(x, wanted, place.tolerance)
    expect_close(scaled.y, x.float() * after.float(), place.tolerance)
    expect_close(scaled.squares.sum(0), x.float().square().sum(-1), 1e-4)
    walled.check()


def check_layer_ignores_row_count(seed: int, shape: LayerShape) -> None:
    """Rows among 16 have bit for bit the numbers they have among 32 and 64, in every linear."""
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
        walled, norm = Walled(), Norm(gain, 1e-6)
        stream, parts = x[:rows].clone(), parts_of(shape, rows, walled)
        scaled, _ = _scaled(stream, gain, walled)
        qkv = place.normal(rows, shape.qkv // size, size)
        where = RowSlots(torch.arange(rows, device=place.device).int(), torch.arange(rows, device=place.device).int())
        caches = (place.normal(rows, kv_heads, size), place.normal(rows, kv_heads, size))
        project_qkv(scaled, norm, Weight(ws[0], bias), qkv, Rotation(where, angles, caches, norms), Beside(parts))
        project_add(attended[:rows].contiguous(), Weight(ws[1]), stream, (norm, scaled), Beside(parts))
        hidden = project_swiglu(scaled, norm, Weight(ws[2]), place.normal(rows, ffn), Beside(parts))
        project_add(hidden, Weight(ws[3]), stream, (norm, scaled), Beside(parts))
        return [tensor[:16].clone() for tensor in (qkv, caches[0], hidden, stream, scaled.squares.T)]

    few = layer(16)
    for rows in (32, 64):
        for name, one, other in zip(("qkv", "cache", "ffn", "stream", "squares"), few, layer(rows), strict=True):
            if place.device == "cuda":
                assert torch.equal(one, other), f"{name}: {rows} rows gave other numbers than 16"
            expect_close(other, one, place.tolerance)  # all that can be asked of an interpreter's own products


def check_embed_keeps_to_its_table() -> None:
    """A canvas longer than the table of masks repeats the last one; nothing behind the table is read."""
    place, walled = here(), Walled()
    table, masks = walled(place.normal(50, 64)), walled(place.normal(8, 64))
    index = torch.arange(-1, 63, device=place.device).int()
    out = walled(torch.zeros(64, 64, device=place.device, dtype=place.dtype))
    embed(table, masks, torch.zeros_like(index), index, out)
    assert torch.equal(out[1:], masks[index[1:].long().clamp(max=7)])
    walled.check()


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for name, shape in TRUE_SHAPES.items():
        for rows in (16, 64):
            yield f"qkv {name} rows={rows}", lambda s=shape, r=rows, n=name == "8B": check_qkv(0, s, r, n)
            yield f"ffn {name} rows={rows}", lambda s=shape, r=rows: check_ffn(0, s, r)
        yield f"layer {name} ignores row count", lambda s=shape: check_layer_ignores_row_count(0, s)
    yield "embed keeps to its table", check_embed_keeps_to_its_table
