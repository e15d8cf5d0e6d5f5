"""The feed-forward of a layer with routed experts: weights in the kernels' layout, buffers, and its four launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn

from quicksilver.backends.cuda.kernels.expert_kernels import add_to_stream_kernel
from quicksilver.backends.cuda.kernels.experts import (
    LOW_TILE,
    ExpertWeights,
    expert_parts,
    quantise_experts,
    tile_height,
)
from quicksilver.backends.cuda.kernels.launch import pdl_options
from quicksilver.backends.cuda.kernels.linears import Norm, NormInput
from quicksilver.backends.cuda.kernels.router import Router, RouterOutputs, UsedRows, allocate_router, route_rows
from quicksilver.backends.cuda.kernels.row_kernels import INPUT_SCALE
from quicksilver.model.experts import MoeConfig
from quicksilver.model.moe import SparseFeedForward

# Columns of a program that adds experts to the stream, where no norm follows in the same launch.
_ADD_COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class SparseWeights:
    """The router, the routed experts, and the shared expert as a stack of one."""

    router: Router
    routed: ExpertWeights
    shared: ExpertWeights | None

    @property
    def is_quantised(self) -> bool:
        return self.routed.down_scale is not None

    @property
    def num_bytes(self) -> int:
        """Bytes that a forward of one row reads."""
        shared = 0 if self.shared is None else self.shared.num_bytes
        share = self.router.moe.top_k / self.router.moe.num_experts
        return int(self.routed.num_bytes * share) + shared + self.router.weight.nbytes


def sparse_refusal(moe: MoeConfig) -> str | None:
    """Why the kernels cannot compute these experts; None if they can."""
    if moe.shared_ffn_dim not in (0, moe.ffn_dim):
        return f"a shared expert of width {moe.shared_ffn_dim} beside experts of width {moe.ffn_dim}"
    if moe.ffn_dim % 16:
        return f"experts of width {moe.ffn_dim}, which is not a multiple of 16"
    return None


def collect_sparse(layer: SparseFeedForward, is_quantised: bool) -> SparseWeights:
    """The layer's tensors, or fp8 copies of the experts. The router keeps its dtype."""
    moe = layer.config
    shared = None
    if moe.shared_ffn_dim:
        shared = (layer.shared_gate_up.weight.detach()[None], layer.shared_down.weight.detach()[None])
    make = quantise_experts if is_quantised else ExpertWeights
    routed = make(layer.gate_up.detach(), layer.down.detach())
    bias = None if layer.bias is None else layer.bias.detach().float()
    return SparseWeights(Router(layer.router.detach(), bias, moe), routed, None if shared is None else make(*shared))


def free_sparse(layer: SparseFeedForward) -> None:
    """Drop the experts, of which `collect_sparse` made quantised copies."""
    for name in ("gate_up", "down"):
        setattr(layer, name, nn.Parameter(getattr(layer, name).new_empty(0), requires_grad=False))
    if layer.config.shared_ffn_dim:
        for linear in (layer.shared_gate_up, layer.shared_down):
            linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)


@dataclass(frozen=True, slots=True)
class SparseWorkspace:
    """Buffers of one number of rows, shared by the layers."""

    router: RouterOutputs
    hidden: Tensor  # (pairs, ffn) in the input format of the experts
    parts: Tensor  # (pairs, dim) fp32

    @classmethod
    def allocate(cls, weights: SparseWeights, num_rows: int, *, is_invariant: bool) -> SparseWorkspace:
        """`is_invariant`: low tiles for any number of rows, so that a row has the same bits in every batch."""
        moe, like = weights.router.moe, weights.router.weight
        dtype = torch.float16 if weights.is_quantised else like.dtype
        height = LOW_TILE if is_invariant else tile_height(num_rows, moe.top_k, moe.num_experts)
        router = allocate_router(num_rows, like.shape[1], moe, height, dtype, like.device)
        pairs = router.chosen.numel()
        hidden = torch.empty(pairs, moe.ffn_dim, dtype=dtype, device=like.device)
        return cls(router, hidden, torch.empty(pairs, like.shape[1], device=like.device))


def run_sparse(
    x: Tensor,
    norm: Norm,
    weights: SparseWeights,
    used: UsedRows,
    workspace: SparseWorkspace,
    squares: Tensor | None = None,
) -> None:
    """The experts of every row of the stream x, into `workspace`. `squares` as in `route_rows`."""
    router = workspace.router
    scale = INPUT_SCALE if weights.is_quantised else 1.0
    route_rows(x, norm, weights.router, router, used, squares=squares, input_scale=scale)
    buffers = (workspace.hidden, workspace.parts)
    expert_parts(router.normed, weights.routed, weights.shared, router.tiles, buffers, weights.router.moe.activation)


def add_sparse(
    workspace: SparseWorkspace,
    first_row: int,
    stream: Tensor,
    after: tuple[Norm, NormInput] | None = None,
    input_scale: float = 1.0,
) -> None:
    """Add the experts of the rows from `first_row` on to their part of the stream, in place. `after`: the next norm,
    and the buffers of its input."""
    (num_rows, dim), router = stream.shape, workspace.router
    places = router.chosen.shape[1]
    rows = slice(first_row, first_row + num_rows)
    y, squares = (stream, stream) if after is None else (after[1].y, after[1].squares)
    num_tiles = triton.cdiv(dim, _ADD_COLUMNS) if after is None else len(squares)
    width = triton.cdiv(dim, num_tiles)
    add_to_stream_kernel[(num_rows, num_tiles)](
        workspace.parts[first_row * places :], router.chosen[rows], router.weights[rows], stream, y, squares,
        stream if after is None else after[0].gain, dim, num_rows, width,
        PLACES=places, BLOCK=triton.next_power_of_2(width), NORM=after is not None, INPUT_SCALE=input_scale,
        num_warps=4 if after is None else 1, **pdl_options(),
    )  # fmt: skip
