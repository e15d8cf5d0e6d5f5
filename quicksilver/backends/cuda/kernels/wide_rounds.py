"""Rounds of many sequences: their workspace, and the network of those with 64 or 128 rows.

The rows of each sequence are few and all sequences have as many, so attention has small tiles (`decode_attention.py`).
Above 128 rows cuBLAS multiplies; for 64 and 128 rows a layer has seven launches here (`round_linears.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from quicksilver.backends.cuda.kernels.attention import AttentionShape
from quicksilver.backends.cuda.kernels.decode_attention import decode_shape
from quicksilver.backends.cuda.kernels.fp8 import ActivationFormat
from quicksilver.backends.cuda.kernels.layer_attention import LayerAttention
from quicksilver.backends.cuda.kernels.layer_fused_shape import LAYER_FUSED_ROWS
from quicksilver.backends.cuda.kernels.round_linears import (
    add_norm,
    can_run_round_linears,
    linear_sums,
    linear_swiglu_tiles,
    sums_size,
)
from quicksilver.backends.cuda.kernels.row_kernels import embed, norm_rows
from quicksilver.backends.cuda.kernels.sparse import SparseWorkspace
from quicksilver.backends.cuda.kernels.weight_streaming import PartialSums
from quicksilver.backends.cuda.kernels.workspace import SMALL_BATCH_ROWS, RowInputs, Workspace

# Sequences of the smallest wide round. Rounds of fewer have the numbers of ordinary forwards.
_MIN_SEQUENCES = 16


class Sequences(NamedTuple):
    """The sequences of a round, and the most rows that one of them has."""

    number: int
    rows_each: int


def is_wide(num_rows: int, sequences: Sequences) -> bool:
    """Whether a round has kernels of its own."""
    return num_rows > LAYER_FUSED_ROWS and sequences.number >= _MIN_SEQUENCES


def wide_workspace(
    attention: LayerAttention,
    num_rows: int,
    sequences: Sequences,
    general: AttentionShape,
    activations: ActivationFormat | None,
) -> Workspace:
    """`general`: the tiling of attention where the tiles of a sequence are not small."""
    config, weights = attention.config, attention.weights
    shape = decode_shape(config.num_heads, config.num_kv_heads, config.head_dim, *sequences)
    is_round = can_run_round_linears(weights, num_rows)
    workspace = Workspace.allocate(config, weights, num_rows, shape or general, activations)
    if (sparse := weights.layers[-1].sparse) is not None:
        workspace = replace(workspace, sparse=SparseWorkspace.allocate(sparse, num_rows, is_invariant=False))
    if is_round:
        partials = PartialSums.allocate(sums_size(weights, num_rows), workspace.x.device)
        workspace = replace(workspace, partials=partials)
    uses_library = num_rows > SMALL_BATCH_ROWS and not is_round
    fuses_rope = shape is not None and sequences.rows_each == 1 and config.rotary_dim == config.head_dim
    return replace(workspace, uses_library=uses_library, is_round=is_round, fuses_rope=fuses_rope)


def run_round(attention: LayerAttention, rows: RowInputs, workspace: Workspace) -> Tensor:
    """-> `workspace.x`, as `CudaNetwork.run`."""
    weights, x, normed, sums = attention.weights, workspace.x, workspace.scaled.y, workspace.partials.sums
    layers = weights.layers
    embed(weights.tokens, None, rows.token_ids, rows.mask_index, x)
    norm_rows(x, layers[0].attn_norm.gain, layers[0].attn_norm.eps, normed)
    next_norms = [*(layer.attn_norm for layer in layers[1:]), weights.norm]
    for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
        attended = attention.attend_sums(index, linear_sums(normed, layer.qkv, sums), rows, workspace)
        add_norm(linear_sums(attended, layer.o, sums), x, layer.ffn_norm, normed)
        hidden = linear_swiglu_tiles(normed, layer.gate_up, workspace.ffn)
        add_norm(linear_sums(hidden, layer.down, sums), x, next_norm, normed)
    return x
