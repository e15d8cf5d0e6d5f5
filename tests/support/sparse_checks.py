"""Checks of networks with routed experts on CUDA kernels against the eager network. No pytest here: see
`kernel_checks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.linears import Norm
from quicksilver.backends.cuda.kernels.router import Router, UsedRows, allocate_router, route_rows
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.experts import MoeConfig
from quicksilver.model.moe import SparseFeedForward, route
from tests.support.graph_checks import causal_batch, check_batch_invariant_matmul, check_network, model_of
from tests.support.kernel_checks import KINDS, expect_close, here, relative_error

# The routers of SDAR-30B-A3B and LLaDA2, with few experts.
SOFTMAX = MoeConfig(6, 2, 32)
GROUPED = MoeConfig(
    6, 2, 32, "sigmoid", has_bias=True, num_groups=2, top_groups=1, scale=2.5, shared_ffn_dim=32, num_dense=1
)
SMALL = ModelConfig("sdar-moe", 1, 32, 64, 2, 1, 32, 60, 256, qk_norm=True, tied_head=True)
# For a GPU.
WIDE = ModelConfig("sdar-moe", 2, 1024, 640, 8, 2, 128, 500, 1024, qk_norm=True)
WIDE_SOFTMAX = MoeConfig(128, 8, 192)
WIDE_GROUPED = replace(
    GROUPED, num_experts=64, top_k=8, ffn_dim=256, shared_ffn_dim=256, num_groups=8, top_groups=4, scale=1.0
)


def sparse(config: ModelConfig, moe: MoeConfig) -> ModelConfig:
    """With experts; a leading dense layer is added, and half of each head is rotated, as in LLaDA2."""
    return replace(
        config, moe=moe, num_layers=config.num_layers + moe.num_dense, partial_rotary=0.5 if moe.num_dense else 1.0
    )


def check_router(moe: MoeConfig, num_rows: int, dim: int) -> None:
    """The chosen experts, their order, their weights and the normed rows are those of the eager router."""
    torch.manual_seed(num_rows)
    place = here()
    x, gain, matrix = place.normal(num_rows, dim), place.normal(dim), place.normal(moe.num_experts, dim)
    matrix *= 2 / dim**0.5
    bias = torch.randn(moe.num_experts, device=place.device) if moe.has_bias else None
    normed = torch.nn.functional.rms_norm(x, (dim,), gain, 1e-6)
    chosen, weights = route(normed.float() @ matrix.float().T, bias, moe)
    out = allocate_router(num_rows, dim, moe, 16, place.dtype, place.device)
    for _ in range(2):
        route_rows(x, Norm(gain, 1e-6), Router(matrix, bias, moe), out)
    found = out.chosen[:, : moe.top_k].long()
    # On a GPU logits are summed in another order, so near-ties may be resolved in another way.
    same = (found == chosen).all(1)
    assert float(same.float().mean()) >= (0.9 if place.device == "cuda" else 1.0)
    expect_close(out.weights[same][:, : moe.top_k], weights[same], 1e-3 if place.device == "cuda" else 1e-5)
    expect_close(out.normed, normed, place.tolerance)
    if moe.shared_ffn_dim:
        assert bool((out.chosen[:, -1] == moe.num_experts).all())
        assert bool((out.weights[:, -1] == 1).all())
    expect_tiles(out.chosen, out.tiles.records[: int(out.tiles.num_tiles)], out.tiles.pairs)


def expect_tiles(chosen: Tensor, records: Tensor, pairs: Tensor) -> None:
    """Every pair of a row and an expert is in exactly one tile, which belongs to this expert."""
    found = {}
    for expert, first, end, _ in records.tolist():
        for pair in pairs[expert, first:end].tolist():
            assert pair not in found, "a pair is in two tiles"
            found[pair] = expert
    assert found == {pair: e for pair, e in enumerate(chosen.flatten().tolist()) if e >= 0}


def check_unused_rows(moe: MoeConfig, dim: int) -> None:
    """Rows that attend to nothing choose no expert; the choice of the others does not change."""
    place = here()
    x, matrix = place.normal(5, dim), place.normal(moe.num_experts, dim)
    norm, router = Norm(place.normal(dim), 1e-6), Router(matrix, None, replace(moe, has_bias=False))
    whole, part = (allocate_router(5, dim, router.moe, 16, place.dtype, place.device) for _ in range(2))
    route_rows(x, norm, router, whole)
    prefix, start, end = (
        torch.tensor(v, device=place.device).int() for v in ([3, 0, 0, 1, 0], [0, 0, 2, 0, 4], [0, 0, 5, 0, 4])
    )
    route_rows(x, norm, router, part, UsedRows(prefix, start, end))
    is_used = torch.tensor([True, False, True, True, False], device=place.device)
    assert torch.equal(part.chosen, torch.where(is_used[:, None], whole.chosen, -1))
    expect_tiles(part.chosen, part.tiles.records[: int(part.tiles.num_tiles)], part.tiles.pairs)


def check_sparse_fp8(config: ModelConfig, num_sequences: int) -> None:
    """With fp8 weights the hidden states are those of a network of the rounded weights, up to the rounding of
    activations, and close to those of the exact weights."""
    model, place = model_of(config, has_adapter=False), here()
    cache = PagedCache.allocate(config, 64, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    batch, found = causal_batch(num_sequences, 5, 20, 16), []
    for scheme in ("bfloat16", "fp8"):
        other = PagedCache(cache.k.clone(), cache.v.clone(), 16)
        executor = GraphExecutor(model, other, 64, GraphLimits(512, 32, 256, scheme=scheme))
        if scheme == "fp8":
            executor.free_matrices()
            layer = model.layers[-1].moe
            assert isinstance(layer, SparseFeedForward)
            assert layer.gate_up.numel() == 0
        found.append(model.norm(executor.launch(batch)[: 5 * num_sequences]).clone())
    error = relative_error(found[1], found[0])
    assert 1e-3 < error < 0.3, f"relative error {error:.2e}"


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for name, moe in (("softmax", WIDE_SOFTMAX), ("grouped", WIDE_GROUPED)):
        config = sparse(WIDE, moe)
        for rows in (4, 32, 200):
            yield f"router {name} rows={rows}", lambda m=moe, r=rows: check_router(m, r, 1024)
        yield f"router {name} with unused rows", lambda m=moe: check_unused_rows(m, 1024)
        for seed, kinds in enumerate((("one", "canvas"), KINDS)):
            yield (
                f"network with experts {name} seed={seed}",
                lambda c=config, s=seed, k=kinds: check_network(c, s, False, k, has_adapter=False),
            )
        yield f"experts {name} are batch-invariant", lambda c=config: check_batch_invariant_matmul(c, (12, 30), False)
        for count in (3, 30):
            yield f"fp8 experts {name} sequences={count}", lambda c=config, n=count: check_sparse_fp8(c, n)
