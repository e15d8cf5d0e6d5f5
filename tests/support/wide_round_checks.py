"""Checks of rounds of many sequences against the eager network. No pytest here: see `kernel_checks`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.batch import Batch, build_batch
from quicksilver.backends.cuda.adapter_buffers import send_tiles
from quicksilver.backends.cuda.block_rounds import BlockGraph
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.attention import AttentionShape, AttentionWorkspace, RowTables
from quicksilver.backends.cuda.kernels.decode_attention import RawQkv, attend_decode
from quicksilver.backends.cuda.kernels.fp8 import ActivationFormat
from quicksilver.backends.cuda.kernels.round_linears import ROUND_ROWS
from quicksilver.backends.cuda.kernels.row_kernels import INPUT_SCALE
from quicksilver.backends.cuda.kernels.wide_rounds import Sequences
from quicksilver.backends.cuda.kernels.workspace import dtype_of
from quicksilver.backends.cuda.logit_bias import ADAPTER_OPTIONS, SamplingOptions
from quicksilver.backends.cuda.persistent_batch import SlotGraph, SlotState
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.dialect import Dialect
from quicksilver.diffusion.confidence import Confidence
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.row_adapters import AdapterRows, convert
from quicksilver.model.transformer import Transformer
from tests.support import sparse_checks
from tests.support.adapter_checks import adapted_forward, limits_of, network_adapters
from tests.support.dialect_graph_checks import dialect_on_graphs
from tests.support.graph_checks import (
    ROUND_CONFIGS,
    SMALL,
    SMALL_NORMED,
    WIDE,
    causal_batch,
    eager_forward,
    model_of,
)
from tests.support.int4_checks import ORACLES
from tests.support.kernel_checks import expect_close, here, relative_error
from tests.support.sparse_checks import WIDE_GROUPED, WIDE_SOFTMAX, sparse


def check_round_of_many(config: ModelConfig, count: int, past: int, has_adapter: bool = True) -> None:
    """The kernels of rounds with one row for each of many sequences equal the eager network. `has_adapter`: the model
    has a canvas adapter, which a round does not use."""
    model, place = model_of(config, has_adapter=has_adapter), here()
    batch = causal_batch(count, 1, past, 16)
    cache = PagedCache.allocate(config, count * (past // 16 + 1), 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    before, other = (cache.k.clone(), cache.v.clone()), PagedCache(cache.k.clone(), cache.v.clone(), 16)
    executor = GraphExecutor(model, other, 64, GraphLimits(count, count, past + 32))
    workspace = executor.network.workspace(count, sequences=Sequences(count, 1))
    assert workspace.attend.shape.is_decode
    assert workspace.is_round == (count in ROUND_ROWS and config.moe is None)
    buffers = executor.row_buffers(count)[0]
    buffers.fill(batch, workspace.attend.shape.tile_rows)
    for _ in range(2):
        found = model.norm(executor.network.run(buffers.inputs, workspace, False))
    # The others do not depend on a row without a sequence, which writes nothing.
    buffers.inputs.tables.prefix_end[3], buffers.inputs.where.slots[3] = 0, -1
    written = (other.k.clone(), other.v.clone())
    again = model.norm(executor.network.run(buffers.inputs, workspace, False))
    rest = torch.arange(count, device=place.device) != 3
    if config.moe is None:
        assert torch.equal(again[rest], found[rest]), "an unused row changes others"
    else:  # tiles of experts have other rows then, and numpy's matmul is not batch-invariant
        expect_close(again[rest], found[rest], place.tolerance)
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


def check_quantised_round(scheme: str, config: ModelConfig, count: int, past: int) -> None:
    """A round on quantised weights equals an ordinary forward, which has another attention, and the eager network with
    the dequantised weights; less closely where inputs are rounded to fp8."""
    model, place = model_of(config, has_adapter=False), here()
    batch = causal_batch(count, 1, past, 16)
    cache = PagedCache.allocate(config, count * (past // 16 + 1), 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    before = PagedCache(cache.k.clone().float(), cache.v.clone().float(), 16)
    executor = GraphExecutor(model, cache, 64, GraphLimits(count, count, past + 32, scheme=scheme))
    workspace = executor.network.workspace(count, sequences=Sequences(count, 1))
    assert workspace.attend.shape.is_decode
    assert not workspace.is_round
    buffers, ordinary = executor.row_buffers(count)
    buffers.fill(batch, workspace.attend.shape.tile_rows)
    found = model.norm(executor.network.run(buffers.inputs, workspace, False))
    has_fp8_inputs = workspace.attend.steps is not None or (scheme == "fp8" and workspace.uses_library)
    # Rounding to fp8 turns the last bits of a sum into a step.
    same = (
        1.2e-1 if has_fp8_inputs and place.dtype is torch.bfloat16 else place.tolerance * (200 if has_fp8_inputs else 1)
    )
    expect_close(model.norm(executor.network.run(buffers.inputs, ordinary, False)), found, same)
    tolerance = 2e-1 if has_fp8_inputs else 4e-2 if place.dtype is torch.bfloat16 else 5e-3
    expect_close(found, eager_forward(ORACLES[scheme](model), batch, before), tolerance)
    expect_close(cache.k, before.k, tolerance)


def check_slot_round(config: ModelConfig, count: int, past: int, has_adapters: bool) -> None:
    """The round of slots in the default mode equals the eager network, after a round with all slots empty. With
    adapters every fourth slot has none."""
    model, place = model_of(config), here()
    batch = causal_batch(count, 1, past, 16)
    num_pages = past // 16 + 1
    cache = PagedCache.allocate(config, count * num_pages, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    other = PagedCache(cache.k.clone(), cache.v.clone(), 16)
    limits = limits_of(config, place.dtype, 6, max_rows=count, max_segments=count, context_len=past + 32)
    executor = GraphExecutor(model, other, 64, limits)
    slots = SlotState(count, executor.pages.shape[1], executor.device)
    graph = SlotGraph(executor, slots, count)
    assert graph.forward.workspace.attend.shape.is_decode
    workspace = graph.forward.adapter_workspace if has_adapters else graph.forward.workspace
    replay = graph.prepare(ADAPTER_OPTIONS if has_adapters else SamplingOptions(), has_adapters)
    replay()
    assert torch.equal(other.k, cache.k), "empty slots are written"
    assert bool((slots.buffer == -1).all())
    for b, token in enumerate(batch.token_ids.tolist()):
        slots.set(b, token, past)
        slots.set_pages(b, 0, list(range(b * num_pages, (b + 1) * num_pages)))
    slots.send()
    batch_of = _send_adapters(executor, graph, batch, config) if has_adapters else lambda dtype: batch
    replay()
    plain = _expect_eager(model.norm(workspace.x), other, model, batch_of, cache)
    is_same = graph.results[0] == model.head(plain.to(place.dtype)).argmax(-1)
    assert float(is_same.float().mean()) >= (0.8 if place.dtype is torch.bfloat16 else 1.0)
    assert torch.equal(slots.last, graph.results[0])
    assert bool((slots.position == past + 1).all())


def _send_adapters(
    executor: GraphExecutor, graph: SlotGraph, batch: Batch, config: ModelConfig
) -> Callable[[torch.dtype], Batch]:
    """Give the slots adapters in turn -> the batch with the same ones in plain torch."""
    table, made = executor.adapter_store, network_adapters(config)
    assert table is not None
    assert graph.adapters is not None
    placed = [executor.convert_adapter(one) for one in made]
    for one in placed:
        table.place(one)
    choice = torch.arange(graph.num_slots) % 4 - 1
    places = np.array([-1, *(table.slot_of(one) for one in placed)], dtype=np.int32)
    send_tiles(graph.adapters, places[choice.numpy() + 1])

    def batch_of(dtype: torch.dtype) -> Batch:
        device = executor.device
        plain = [convert(config, one, lambda pair: pair.to(device, dtype), device) for one in made]
        rows = [AdapterRows(one, (choice == i).nonzero()[:, 0]) for i, one in enumerate(plain)]
        return replace(batch, row_adapters=tuple(rows))

    return batch_of


def check_block_round(config: ModelConfig, count: int, block_len: int) -> None:
    """The rows of a round of blocks, some of which write the block before, equal those of the eager network. The last
    sequence is unused."""
    model, place = dialect_on_graphs("sdar", config), here()
    dialect = replace(model.config.dialect, block_len=block_len)
    model.config = replace(model.config, dialect=dialect)
    cache = PagedCache.allocate(config, 4 * count, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    other = PagedCache(cache.k.clone(), cache.v.clone(), 16)
    executor = GraphExecutor(model, other, 64, GraphLimits(2 * count * block_len, count, 64))
    graph = BlockGraph(executor, count, count)
    assert graph.workspace.attend.shape.is_decode
    assert graph.workspace.is_round == (len(graph.workspace.x) in ROUND_ROWS)
    options, works = SamplingOptions(), _block_works(dialect, count - 1)
    replay = graph.prepare(options)
    replay()
    assert torch.equal(other.k, cache.k), "a round without sequences writes"
    graph.load(works, options)
    replay()
    batch = build_batch(works, 16)
    found = model.norm(graph.workspace.x[: len(batch.token_ids)])
    _expect_eager(found, other, model, lambda dtype: batch, cache)


def _expect_eager(
    found: Tensor,
    other: PagedCache,
    model: Transformer,
    batch_of: Callable[[torch.dtype], Batch],
    cache: PagedCache,
) -> Tensor:
    """Hidden states, and the cache `other` afterwards, are those of the eager network in fp32 with `cache`, which may
    change -> those hidden states. In bf16 the kernels may lose as much as eager torch does."""
    exact_cache = PagedCache(cache.k.float(), cache.v.float(), 16)
    exact = adapted_forward(copy.deepcopy(model).float(), batch_of(torch.float32), exact_cache)
    limits = (1e-4, 1e-4)
    if here().dtype is torch.bfloat16:
        plain = adapted_forward(model, batch_of(torch.bfloat16), cache)
        pairs = ((plain, exact), (cache.k, exact_cache.k))
        limits = tuple(max(4e-2, 1.5 * relative_error(one, other_one)) for one, other_one in pairs)  # type: ignore[assignment]
    expect_close(found, exact, limits[0])
    expect_close(other.k, exact_cache.k, limits[1])
    expect_close(other.v, exact_cache.v, limits[1])
    return exact


def check_input_formats(activations: ActivationFormat) -> None:
    """Attention stores the format of quantised linears, with one split and with several."""
    torch.manual_seed(0)
    place, (heads, kv_heads, size), page_size, lengths = here(), (4, 2, 32), 16, (7, 0, 300, 130)
    num_rows, num_pages = len(lengths), 20
    shape = AttentionShape(heads, kv_heads, size, 16, 4, 64)
    caches = (place.normal(num_rows * num_pages * page_size, kv_heads, size) for _ in range(2))
    pages = torch.arange(num_rows * num_pages, device=place.device).int().view(num_rows, -1)
    none, prefix_end = (
        torch.zeros(num_rows, device=place.device).int(),
        torch.tensor(lengths, device=place.device).int(),
    )
    tiles = torch.tensor([(b, b, b + 1) for b in range(num_rows)], device=place.device).int()
    tables, qkv = RowTables(prefix_end, none, none, tiles, pages, page_size), place.normal(num_rows, 8, size)
    plain = AttentionWorkspace.allocate(shape, num_rows, place.dtype, place.device)
    wanted = attend_decode(qkv, given := tuple(caches), tables, plain).float()  # type: ignore[arg-type]
    own = AttentionWorkspace.allocate(shape, num_rows, dtype_of(activations, place.dtype), place.device)
    if activations is ActivationFormat.HALF:
        own = replace(own, input_scale=INPUT_SCALE)
    else:
        own = replace(own, steps=torch.zeros(heads, num_rows, device=place.device))
    for _ in range(2):  # twice: the first launch must reset the counters
        found = attend_decode(qkv, given, tables, own).float()  # type: ignore[arg-type]
        if own.steps is None:
            found = found / INPUT_SCALE
        else:
            found = (found.view(num_rows, heads, size) * own.steps.T[..., None]).flatten(1)
        expect_close(found, wanted, 3e-2 if own.steps is not None else 5e-3)
    assert own.arrived is not None
    assert not bool(own.arrived.any())


def check_far_slots() -> None:
    """Attention reads and writes slots behind 2^31 elements of the cache."""
    torch.manual_seed(0)
    place, (heads, kv_heads, size), page_size, past, row = here(), (4, 2, 32), 16, 150, 5
    num_pages, width = past // page_size + 1, kv_heads * size
    num_far = (2**31 + 2**16) // width // page_size
    shape, num_rows = AttentionShape(heads, kv_heads, size, 16, 4, 64), 8
    workspace = AttentionWorkspace.allocate(shape, num_rows, torch.float16, place.device)
    angles = torch.randn(past + 1, 2, size // 2, device=place.device)
    sums = torch.randn(3, num_rows, (heads + 2 * kv_heads) * size, device=place.device)
    text = torch.randn(2, num_pages * page_size, kv_heads, size, device=place.device).half()
    none = torch.zeros(num_rows, dtype=torch.int32, device=place.device)
    tiles = torch.tensor([(b, b, b + 1) for b in range(num_rows)], device=place.device).int()
    found = list[tuple[Tensor, ...]]()
    for first in (0, num_far - num_pages):
        # Memory that is not written is not occupied.
        caches = tuple(
            torch.empty((first + num_pages) * page_size, kv_heads, size, device=place.device, dtype=torch.float16)
            for _ in range(2)
        )
        own = slice(first * page_size, (first + num_pages) * page_size)
        for part, given in zip(caches, text, strict=True):
            part[own] = given
        pages, prefix_end, slots = none[:, None].repeat(1, 12), none.clone(), none - 1
        pages[row, :num_pages] = torch.arange(first, first + num_pages)
        prefix_end[row], slots[row] = past + 1, first * page_size + past
        tables = RowTables(prefix_end, none, none, tiles, pages, page_size)
        qkv = torch.empty(num_rows, heads + 2 * kv_heads, size, device=place.device, dtype=torch.float16)
        raw = RawQkv(sums, None, angles, slots)
        out = attend_decode(qkv, (caches[0], caches[1]), tables, workspace, raw)[row].clone()
        found.append((out, *(part[own].clone() for part in caches)))
    for near, far in zip(*found, strict=True):
        assert torch.equal(near, far)
    assert not torch.equal(found[0][1], text[0]), "no key is written"


def _block_works(dialect: Dialect, count: int) -> list[Work]:
    """Sequences of different lengths; every second one has a block whose KV is not written."""
    decoder, works, length = Confidence(DecoderParams(DecoderName.CONFIDENCE), dialect), list[Work](), dialect.block_len
    for b in range(count):
        num_tokens = (2 + b % 5) * length
        tokens = tuple((7 * b + 3 * i) % 50 for i in range(num_tokens))
        one = Sequence(Request(str(b), tokens, DecodeParams()), decoder, dialect=dialect)
        one.pages, one.kv_len = [4 * b + i for i in range(4)], num_tokens - b % 2 * length
        one.open_canvas()
        works.append(Work(one, one.kv_len, num_tokens, one.tail))
    return works


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for kind, config in ROUND_CONFIGS:
        for count, past in ((64, 40), (128, 300), (256, 20)):
            name = f"round of many {kind} rows={count}"
            yield name, lambda c=config, n=count, p=past: check_round_of_many(c, n, p)
            for has_adapters in (False, True):
                name = f"round of slots {kind} rows={count} adapters={has_adapters}"
                yield name, lambda c=config, n=count, p=past, h=has_adapters: check_slot_round(c, n, p, h)
    for count, (kind, moe) in product((64, 128), (("softmax", WIDE_SOFTMAX), ("grouped", WIDE_GROUPED))):
        config = sparse(sparse_checks.WIDE, moe)
        yield f"round of experts {kind} rows={count}", lambda c=config, n=count: check_round_of_many(c, n, 40, False)
    for count, scheme, (kind, config) in product((64, 128), ORACLES, (("small", SMALL), ("wide", WIDE))):
        name = f"round {scheme} {kind} rows={count}"
        yield name, lambda s=scheme, c=config, n=count: check_quantised_round(s, c, n, 40)
    for block_len in (2, 4, 8):
        name = f"round of blocks {block_len}"
        yield name, lambda n=block_len: check_block_round(SMALL_NORMED, 16, n)
    for activations in ActivationFormat:
        yield f"attention decode {activations.name}", lambda a=activations: check_input_formats(a)
    yield "attention decode of far slots", check_far_slots
