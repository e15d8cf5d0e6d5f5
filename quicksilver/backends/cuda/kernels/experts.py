"""Routed experts of a mixture-of-experts layer in a few launches of fixed shapes; a CUDA graph can capture them.

`expert_tiles.py` or the router (`router.py`) groups pairs of a row and an expert into tiles of one expert. Two launches
compute the experts of all tiles, and one adds the experts of each row in the order of their places. With quantised
weights the inputs are fp16 times INPUT_SCALE, as those of other linears (`fp8.ActivationFormat.HALF`).

With few pairs per expert the time is that of reading the weights of the chosen experts. The height of tiles depends on
shapes only; with one height, a row's result does not depend on the other rows of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from quicksilver.backends.cuda.kernels.expert_kernels import (
    add_kernel,
    down_kernel,
    gate_up_kernel,
    to_half_kernel,
)
from quicksilver.backends.cuda.kernels.expert_tiles import ExpertTiles, group_pairs
from quicksilver.backends.cuda.kernels.launch import pdl_options

FP8_MAX = 448.0
_QUANTISED_AT_ONCE = 32  # experts
# Rows of a tile. Few pairs per expert waste most of a high tile; many make a low one read its weights again.
# A low tile holds all pairs of an expert that every row of a block of 32 chooses.
LOW_TILE, HIGH_TILE = 32, 64
# Pairs per expert on average from which tiles are high, and rows up to which they are always low.
HIGH_TILE_PAIRS, LOW_TILE_ROWS = 16, 64


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """`gate_up` (experts, 2 * ffn, dim) and `down` (experts, dim, ffn) in the model's dtype, or in fp8 with one fp32
    scale per output: `gate_up_scale` (experts, 2 * ffn) and `down_scale` (experts, dim)."""

    gate_up: Tensor
    down: Tensor
    gate_up_scale: Tensor | None = None
    down_scale: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes


@dataclass(frozen=True, slots=True)
class ExpertTiling:
    """How a launch reads weights: columns of a program (of gate and of up each), k-block, warps, pipeline stages."""

    block_n: int = 64
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 4


@dataclass(frozen=True, slots=True)
class ExpertTilings:
    """Tilings of the two launches."""

    gate_up: ExpertTiling
    down: ExpertTiling


def quantise_experts(gate_up: Tensor, down: Tensor) -> ExpertWeights:
    """fp8 copies with a scale per output, made for a few experts at a time, so that no copy in fp32 of all is held."""
    (wide, wide_scale), (narrow, narrow_scale) = _to_fp8(gate_up), _to_fp8(down)
    return ExpertWeights(wide, narrow, wide_scale, narrow_scale)


def _to_fp8(w: Tensor) -> tuple[Tensor, Tensor]:
    rounded = torch.empty(w.shape, dtype=torch.float8_e4m3fn, device=w.device)
    scale = torch.empty(w.shape[:2], dtype=torch.float32, device=w.device)
    for start in range(0, len(w), _QUANTISED_AT_ONCE):
        part = slice(start, start + _QUANTISED_AT_ONCE)
        scale[part] = w[part].abs().amax(-1).float().clamp_min(1e-12) / FP8_MAX
        rounded[part] = (w[part].float() / scale[part, :, None]).to(torch.float8_e4m3fn)
    return rounded, scale


def tile_height(num_rows: int, top_k: int, num_experts: int) -> int:
    is_high = num_rows > LOW_TILE_ROWS and num_rows * top_k >= HIGH_TILE_PAIRS * num_experts
    return HIGH_TILE if is_high else LOW_TILE


def pick_tilings(height: int, is_quantised: bool) -> ExpertTilings:
    block_k = 128 if is_quantised else 64
    return ExpertTilings(ExpertTiling(32, block_k), ExpertTiling(64, block_k))


def run_experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str = "silu",
    scales: tuple[Tensor, Tensor] | None = None,
    tiles: ExpertTiles | None = None,
    tilings: ExpertTilings | None = None,
) -> Tensor:
    """The weighted sum of the chosen experts of each row, in fp32. Can be captured in a CUDA graph.

    `x` (rows, dim), `chosen` and `weights` (rows, top_k), `gate_up` (experts, 2 * ffn, dim), `down` (experts, dim,
    ffn). A `chosen` of -1 is no expert. `scales` are those of fp8 weights (`quantise_experts`). `tiles` are those of
    `chosen`, if a router has filled them (`router.py`).
    """
    (num_rows, dim), num_experts, top_k = x.shape, len(down), chosen.shape[1]
    chosen = chosen.contiguous()
    if tiles is None:
        height = tile_height(num_rows, top_k, num_experts)
        tiles = ExpertTiles.allocate(num_rows, num_experts, chosen.numel(), height, x.device)
        group_pairs(chosen, num_experts, tiles)
    experts = ExpertWeights(gate_up, down, *(scales or ()))
    inputs = x.contiguous() if scales is None else _to_half(x)
    hidden = torch.empty(chosen.numel(), down.shape[2], dtype=inputs.dtype, device=x.device)
    parts = torch.empty(chosen.numel(), dim, dtype=torch.float32, device=x.device)
    expert_parts(inputs, experts, None, tiles, (hidden, parts), activation, tilings)
    out = torch.empty(num_rows, dim, dtype=torch.float32, device=x.device)
    block = min(triton.next_power_of_2(dim), 1024)
    add_kernel[(num_rows, triton.cdiv(dim, block))](
        parts, chosen, weights.contiguous(), out, dim, PLACES=top_k, BLOCK=block, **pdl_options()
    )
    return out


def expert_parts(
    x: Tensor,
    experts: ExpertWeights,
    shared: ExpertWeights | None,
    tiles: ExpertTiles,
    buffers: tuple[Tensor, Tensor],
    activation: str = "silu",
    tilings: ExpertTilings | None = None,
) -> Tensor:
    """The output of every pair, (pairs, dim) fp32. `x` (rows, dim) is in the input format of the weights, `shared` is
    one expert after the last routed one, and `buffers` are `hidden` (pairs, ffn) in the format of `x`, and the
    result."""
    (num_experts, dim, ffn_dim), (hidden, parts) = experts.down.shape, buffers
    tilings = tilings or pick_tilings(tiles.height, experts.down_scale is not None)
    other = experts if shared is None else shared
    tables = (tiles.records, tiles.num_tiles, tiles.pairs, tiles.pairs.shape[1], dim, ffn_dim)
    fixed = {
        "NUM_EXPERTS": num_experts, "HEIGHT": tiles.height, "SHARED": shared is not None,
        "SCALE": experts.down_scale is not None, **pdl_options(),
    }  # fmt: skip
    one = tilings.gate_up
    gate_scale, down_scale = _scale(experts.gate_up_scale, parts), _scale(experts.down_scale, parts)
    gate_up_kernel[(triton.cdiv(ffn_dim, one.block_n), tiles.max_tiles)](
        x, experts.gate_up, gate_scale, other.gate_up, _scale(other.gate_up_scale, parts), hidden, *tables,
        PLACES=len(hidden) // len(x), GELU=activation == "gelu_tanh", **_shape(one, dim), **fixed,
    )  # fmt: skip
    one = tilings.down
    down_kernel[(triton.cdiv(dim, one.block_n), tiles.max_tiles)](
        hidden, experts.down, down_scale, other.down, _scale(other.down_scale, parts), parts, *tables,
        **_shape(one, ffn_dim), **fixed,
    )  # fmt: skip
    return parts


def _shape(tiling: ExpertTiling, depth: int) -> dict[str, int | bool]:
    block_k = tiling.block_k
    while block_k > 64 and depth % block_k:
        block_k //= 2
    tiling = replace(tiling, block_k=block_k)
    return {
        "BLOCK_N": tiling.block_n, "BLOCK_K": block_k, "EVEN": depth % block_k == 0, "num_warps": tiling.num_warps,
        "num_stages": tiling.num_stages,
    }  # fmt: skip


def _scale(scale: Tensor | None, other: Tensor) -> Tensor:
    return other if scale is None else scale


def _to_half(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    to_half_kernel[(triton.cdiv(x.numel(), 1024),)](x.contiguous(), out, x.numel(), BLOCK=1024, **pdl_options())
    return out
