"""Random packed linears and comparisons for the tests of this package."""

from __future__ import annotations

import torch
from torch import Tensor

from quicksilver.backends.cpu.linear import PackedLinear
from quicksilver.backends.cpu.matmul import pack_int4
from quicksilver.model.transformer import Transformer
from tests.model.build import run_dense, token_ids


def random_int4_linear(out_dim: int, in_dim: int) -> tuple[PackedLinear, Tensor]:
    """A linear with 4-bit weights, and the weights in float."""
    q = torch.randint(0, 16, (out_dim, in_dim), dtype=torch.uint8)
    scale, minimum = (torch.randn(out_dim, in_dim // 32).half().float() for _ in range(2))
    weight = q * scale.repeat_interleave(32, 1) + minimum.repeat_interleave(32, 1)
    return PackedLinear(*pack_int4(q, scale, minimum), None, (out_dim, in_dim)), weight


def same(first: Transformer, second: Transformer) -> bool:
    """Whether two int8 models have the same bits and compute the same logits."""
    ids, is_canvas = token_ids(9), torch.arange(9) > 6
    assert (first.canvas is None) == (second.canvas is None)
    assert first.weight_format == second.weight_format == "int8"
    tables = (first.state_dict(), second.state_dict())
    assert list(tables[0]) == list(tables[1])
    return all(torch.equal(tables[0][name], tables[1][name]) for name in tables[0]) and torch.equal(
        first.logits(run_dense(first, ids))[~is_canvas], second.logits(run_dense(second, ids))[~is_canvas]
    )
