"""Random packed linears and comparisons for the tests of this package."""

from __future__ import annotations

import torch
from torch import Tensor

from quicksilver.backends.cpu.linear import PackedLinear
from quicksilver.backends.cpu.matmul import pack_int4
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer
from tests.model.build import run_dense, token_ids


def random_int4_linear(out_dim: int, in_dim: int) -> tuple[PackedLinear, Tensor]:
    """A linear with 4-bit weights, and the weights in float."""
    q = torch.randint(0, 16, (out_dim, in_dim), dtype=torch.uint8)
    scale, minimum = (torch.randn(out_dim, in_dim // 32).half().float() for _ in range(2))
    weight = q * scale.repeat_interleave(32, 1) + minimum.repeat_interleave(32, 1)
    return PackedLinear(*pack_int4(q, scale, minimum), None, (out_dim, in_dim)), weight


def by_slot(cache: PagedCache) -> PagedCache:
    """A float32 copy of a cache of the compiled kernels, in the layout that torch reads."""
    layers, num_slots, kv_heads, head_dim = cache.k.shape
    shape, size = cache.k.shape, cache.page_size
    keys = cache.k.view(layers, num_slots // size, kv_heads, head_dim, size).permute(0, 1, 4, 2, 3)
    values = cache.v.view(layers, num_slots // size, kv_heads, size, head_dim).permute(0, 1, 3, 2, 4)
    return PagedCache(keys.reshape(shape).float(), values.reshape(shape).float(), size)


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
