"""Checks of rounds of many sequences against the eager network. No pytest here: see `kernel_checks`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch

from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.round_linears import ROUND_ROWS
from quicksilver.backends.cuda.kernels.wide_rounds import Sequences
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from tests.support.graph_checks import ROUND_CONFIGS, causal_batch, eager_forward, here, model_of
from tests.support.kernel_checks import expect_close, relative_error


def check_round_of_many(config: ModelConfig, count: int, past: int) -> None:
    """The kernels of rounds with one row for each of many sequences equal the eager network."""
    model, place = model_of(config), here()
    batch = causal_batch(count, 1, past, 16)
    cache = PagedCache.allocate(config, count * (past // 16 + 1), 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    before, other = (cache.k.clone(), cache.v.clone()), PagedCache(cache.k.clone(), cache.v.clone(), 16)
    executor = GraphExecutor(model, other, 64, GraphLimits(count, count, past + 32))
    workspace = executor.network.workspace(count, sequences=Sequences(count, 1))
    assert workspace.attend.shape.is_decode
    assert workspace.is_round == (count in ROUND_ROWS)
    buffers = executor.row_buffers(count)[0]
    buffers.fill(batch, workspace.attend.shape.tile_rows)
    for _ in range(2):
        found = model.norm(executor.network.run(buffers.inputs, workspace, False))
    # The others do not depend on a row without a sequence, which writes nothing.
    buffers.inputs.tables.prefix_end[3], buffers.inputs.where.slots[3] = 0, -1
    written = (other.k.clone(), other.v.clone())
    again = model.norm(executor.network.run(buffers.inputs, workspace, False))
    rest = torch.arange(count, device=place.device) != 3
    assert torch.equal(again[rest], found[rest]), "an unused row changes others"
    assert torch.equal(other.k, written[0]), "an unused row is written"
    assert torch.equal(other.v, written[1]), "an unused row is written"
    plain = eager_forward(model, batch, cache)
    if place.dtype is not torch.bfloat16:
        expect_close(found, plain, 1e-4)
        expect_close(other.k, cache.k, 1e-4)
        expect_close(other.v, cache.v, 1e-4)
        return
    exact_cache = PagedCache(before[0].float(), before[1].float(), 16)
    exact = eager_forward(copy.deepcopy(model).float(), batch, exact_cache)
    expect_close(found, exact, max(4e-2, 1.5 * relative_error(plain, exact)))
    expect_close(other.k, exact_cache.k, max(4e-2, 1.5 * relative_error(cache.k, exact_cache.k)))


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for kind, config in ROUND_CONFIGS:
        for count, past in ((64, 40), (128, 300), (256, 20)):
            name = f"round of many {kind} rows={count}"
            yield name, lambda c=config, n=count, p=past: check_round_of_many(c, n, p)
