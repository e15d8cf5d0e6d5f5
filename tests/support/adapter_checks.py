"""Checks of row adapters on the CUDA kernels: the network, forwards, and slots. No pytest here: see `kernel_checks`."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

from quicksilver.adapters import AdapterRef
from quicksilver.backends.batch import Batch
from quicksilver.backends.cuda.adapter_table import page_bytes
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, Request
from quicksilver.engine.adapter_cache import AdapterCache, read_adapter
from quicksilver.engine.engine import Engine
from quicksilver.model.adapters import Adapter, CanvasAdapter, attach_canvas, load_adapter, merge_skill, stack_adapters
from quicksilver.model.attention import PagedCache, SdpaAttend
from quicksilver.model.config import ModelConfig
from quicksilver.model.row_adapters import AdapterRows, convert
from quicksilver.model.transformer import Transformer
from tests.support.graph_checks import (
    LAYER_FUSED,
    NANO_WIDTHS,
    SMALL,
    SMALL_NORMED,
    causal_batch,
    engine_of,
    model_of,
)
from tests.support.int4_checks import ORACLES
from tests.support.kernel_checks import expect_close, here, relative_error
from tests.support.row_adapters import random_adapter, saved
from tests.support.slot_checks import within_buffers

# Ranks that fill no page, more than one page, and one page.
RANKS = (4, 20, 16)


def limits_of(config: ModelConfig, dtype: torch.dtype, num_pages: int, **options: object) -> GraphLimits:
    limits = GraphLimits(adapter_bytes=num_pages * page_bytes(config, dtype), context_len=config.context_len)
    return replace(limits, **options)  # type: ignore[arg-type]


def check_adapter_network(
    config: ModelConfig, count: int, rows_each: int, is_gated: bool, mode: MatmulMode, max_rows: int = 512
) -> None:
    """Hidden states of a batch with three adapters, and with canvas rows, equal those of the eager network. In
    batch-invariant mode rows without an adapter have the values of a batch without adapters."""
    model, place = model_of(config), here()
    caches = [PagedCache.allocate(config, 128, 16, place.device, place.dtype) for _ in range(3)]
    caches[0].k.normal_()
    caches[0].v.normal_()
    for cache in caches[1:]:
        cache.k.copy_(caches[0].k)
        cache.v.copy_(caches[0].v)
    options = {"max_rows": max_rows, "max_segments": 32, "matmul_mode": mode, "prompt_rows": 512}
    executor = GraphExecutor(model, caches[0], 64, limits_of(config, place.dtype, 6, **options))
    adapters = network_adapters(config)
    store = executor.adapter_store
    assert store is not None
    placed = [executor.convert_adapter(adapter) for adapter in adapters]
    for one in placed:
        store.place(one)
    batch = _with_canvas_rows(causal_batch(count, rows_each, 20, 16), rows_each, 2 if is_gated else 0)
    if max_rows < len(batch.token_ids):
        batch = replace(batch, proposing=batch.proposing[:max_rows])
    choice = torch.arange(len(batch.token_ids)) // rows_each % 4 - 1
    in_table = _with_adapters(batch, placed, choice)
    plain = [convert(config, one, lambda pair: pair.to(place.device, place.dtype), place.device) for one in adapters]
    in_torch = _with_adapters(batch, plain, choice)
    found = model.norm(executor.launch(in_table)[: len(choice)]).clone()
    eager = adapted_forward(model, in_torch, caches[1])
    if place.dtype is not torch.bfloat16:
        expect_close(found, eager, 1e-4)
        expect_close(caches[0].k, caches[1].k, 1e-4)
        expect_close(adapted_forward(model, in_table, caches[2]), eager, 1e-4)
    else:
        exact_cache = PagedCache(caches[2].k.float(), caches[2].v.float(), 16)
        exact = adapted_forward(copy.deepcopy(model).float(), in_torch, exact_cache)
        expect_close(found, exact, max(4e-2, 1.5 * relative_error(eager, exact)))
    base = model.norm(executor.launch(batch)[: len(choice)])
    assert relative_error(base, found) > 0.2, "the adapters change nothing"
    if mode is MatmulMode.BATCH_INVARIANT:
        assert torch.equal(base[choice < 0], found[choice < 0]), "rows without an adapter have other values"


def std_of(config: ModelConfig) -> float:
    """Of matrices whose terms are about half as large as the outputs of the linears."""
    return 0.35 * config.dim**-0.25


def network_adapters(config: ModelConfig) -> list[Adapter]:
    """One adapter for each of `RANKS`, without pairs for experts."""
    adapters = [random_adapter(i, rank, config, std=std_of(config)) for i, rank in enumerate(RANKS)]
    for adapter in adapters:
        for layer in list(adapter.layers)[config.num_layers if config.moe is None else config.moe.num_dense :]:
            del layer["gu"], layer["dn"]  # type: ignore[operator]
    return adapters


def check_quantised_base(scheme: str, config: ModelConfig, tolerance: float) -> None:
    """Adapters beside quantised weights: the values of the eager network with the dequantised weights."""
    model, place = model_of(config), here()
    cache = PagedCache.allocate(config, 16, 16, place.device, place.dtype)
    cache.k.normal_()
    cache.v.normal_()
    before = PagedCache(cache.k.clone().float(), cache.v.clone().float(), 16)
    executor = GraphExecutor(model, cache, 64, limits_of(config, place.dtype, 6, max_rows=64, scheme=scheme))
    adapters = network_adapters(config)
    placed = [executor.convert_adapter(adapter) for adapter in adapters]
    for one in placed:
        executor.adapters.table.place(one)  # type: ignore[union-attr]
    batch = _with_canvas_rows(causal_batch(4, 3, 20, 16), 3, 1)
    choice = torch.arange(12) // 3 - 1
    found = model.norm(executor.launch(_with_adapters(batch, placed, choice))[:12]).clone()
    plain = [convert(config, one, lambda pair: pair.to(place.device), place.device) for one in adapters]
    exact = adapted_forward(ORACLES[scheme](model), _with_adapters(batch, plain, choice), before)
    expect_close(found, exact, tolerance)


def _with_canvas_rows(batch: Batch, rows_each: int, num_canvas: int) -> Batch:
    if not num_canvas:
        return batch
    is_canvas = torch.arange(len(batch.token_ids)) % rows_each >= rows_each - num_canvas
    return replace(batch, has_canvas=True, plan=replace(batch.plan, is_canvas=is_canvas))


def _with_adapters(batch: Batch, adapters: list, choice: torch.Tensor) -> Batch:  # type: ignore[type-arg]
    rows = [(one, (choice == i).nonzero()[:, 0]) for i, one in enumerate(adapters)]
    return replace(batch, row_adapters=tuple(AdapterRows(one, own) for one, own in rows if len(own)))


def adapted_forward(model: Transformer, batch: Batch, cache: PagedCache) -> torch.Tensor:
    """The eager forward of a batch with the adapters of its rows."""
    batch = batch.to(cache.k.device)
    x = model.embed(batch.token_ids, batch.mask_index if batch.has_canvas else None)
    is_canvas = batch.plan.is_canvas if batch.has_canvas else None
    return model(x, batch.plan.positions, SdpaAttend(batch.plan, cache), is_canvas, batch.row_adapters)


def adapter_engine(
    model: Transformer,
    num_pages: int,
    mode: MatmulMode = MatmulMode.BATCH_INVARIANT,
    num_slots: int = 0,
    make: type[CudaBackend] = CudaBackend,
) -> Engine:
    """An engine on the CUDA kernels with memory for this many pages of adapters."""
    config, plain = model.config, engine_of(model, None)
    running = max(num_slots, 8)
    options = {"max_rows": 128, "max_segments": running, "matmul_mode": mode}
    limits = limits_of(config, model.dtype, num_pages, **options)
    cache = PagedCache.allocate(config, plain.info.num_pages, 16, model.device, model.dtype, 64)
    backend = make(GraphExecutor(model, cache, 64, limits))
    if num_slots:
        backend.prepare_slots(num_slots)
    adapters = AdapterCache(lambda ref: read_adapter(ref, config, "", backend), 0, backend.adapter_store)
    settings = within_buffers(replace(plain.config, max_running=running), limits)
    return Engine(backend, plain.info, settings, dialect=config.dialect, adapters=adapters)


def answers_of(engine: Engine, requests: list[Request], at_once: int = 1000) -> dict[str, list[int]]:
    """All requests in one batch, `at_once` more in each step."""
    left, found = list(requests), {request.id: list[int]() for request in requests}
    while left or engine.has_work:
        for request in left[:at_once]:
            engine.add(request)
        left = left[at_once:]
        for event in engine.step():
            assert isinstance(event, Delta)
            assert event.error is None, event.error
            found[event.request_id] += event.token_ids
    return found


def adapters_for(config: ModelConfig, folder: Path) -> list[AdapterRef]:
    """Three adapters, the first one with pairs for canvas rows."""
    made = [random_adapter(i, rank, config, std=std_of(config)) for i, rank in enumerate(RANKS)]
    made[0].canvas = random_adapter(9, 5, config, std=std_of(config))
    return [saved(folder, adapter, str(i)) for i, adapter in enumerate(made)]


def mixed_requests(
    config: ModelConfig, adapters: list[AdapterRef], count: int, params: DecodeParams, longest: int
) -> list[Request]:
    """`count` prompts, each without an adapter and with each of them, in random order."""
    rng = random.Random(1)
    prompts = [tuple(rng.randrange(config.vocab_size) for _ in range(rng.randrange(3, longest))) for _ in range(count)]
    requests = [
        Request(f"{choice} {i}", prompt, params, adapter=ref)
        for choice, ref in enumerate([None, *adapters])
        for i, prompt in enumerate(prompts)
    ]
    rng.shuffle(requests)
    return requests


def merged_model(model: Transformer, ref: AdapterRef) -> Transformer:
    merged, adapter = copy.deepcopy(model), load_adapter(Path(ref.path))
    merge_skill(merged, adapter)
    if adapter.canvas is not None and merged.canvas is not None:
        both = stack_adapters([merged.canvas.cpu().float(), adapter.canvas])  # type: ignore[list-item]
        pairs = [dict(layer.items()) for layer in both.layers]  # type: ignore[operator]
        attach_canvas(merged, CanvasAdapter(pairs, merged.canvas.mask_embedding))
    return merged.requires_grad_(False)


def check_mixed_adapters(
    config: ModelConfig,
    count: int,
    decoder: DecoderParams,
    num_tokens: int,
    num_slots: int = 0,
    dtype: torch.dtype | None = None,
    longest: int = 24,
) -> None:
    """Requests with three adapters and with none, mixed, have the tokens of each alone, and in float32 those of each
    adapter merged."""
    model, params = model_of(config, dtype=dtype), DecodeParams(num_tokens, decoder=decoder)
    with tempfile.TemporaryDirectory() as folder:
        adapters = adapters_for(config, Path(folder))
        requests = mixed_requests(config, adapters, count, params, longest)
        engine = adapter_engine(model, 8, num_slots=num_slots)
        mixed = answers_of(engine, requests, 8)
        assert engine.pool.num_free == engine.info.num_pages
        single = adapter_engine(model, 8)
        alone = {request.id: answers_of(single, [request])[request.id] for request in requests}
        assert mixed == alone, "other tokens in a mixed batch"
        texts = [[mixed[f"{choice} {i}"] for i in range(count)] for choice in range(len(adapters) + 1)]
        assert all(texts[i] != texts[j] for i in range(len(texts)) for j in range(i)), "an adapter changes nothing"
        if model.dtype is not torch.float32:
            return
        for choice, ref in enumerate(adapters, 1):
            plain = [replace(one, adapter=None) for one in requests if one.id.startswith(f"{choice} ")]
            merged = answers_of(adapter_engine(merged_model(model, ref), 0), plain)
            assert merged == {one.id: mixed[one.id] for one in plain}, "other tokens than the merged adapter"


def check_adapter_rounds(
    config: ModelConfig, shapes: list[RoundShape], choices: tuple[int, ...], num_tokens: int, longest: int = 40
) -> None:
    """Rounds ahead of the host over sequences with different adapters (0 is none) have the tokens of autoregression
    with the adapter of each, and were used."""
    model, rng = model_of(config), random.Random(3)
    delivered = 0

    class Watched(CudaBackend):
        def _deliver(self, in_flight, works):  # type: ignore[no-untyped-def]
            nonlocal delivered
            delivered += in_flight.has_adapters
            return super()._deliver(in_flight, works)

    with tempfile.TemporaryDirectory() as folder:
        refs = [None, *adapters_for(config, Path(folder))]
        prompts = [tuple(rng.randrange(config.vocab_size) for _ in range(rng.randrange(3, longest))) for _ in choices]

        def requests(decoder: DecoderParams) -> list[Request]:
            params = DecodeParams(num_tokens, decoder=decoder)
            return [
                Request(str(i), p, params, adapter=refs[c])
                for i, (p, c) in enumerate(zip(prompts, choices, strict=True))
            ]

        engine = adapter_engine(model, 8, MatmulMode.FASTEST, make=Watched)
        engine.backend.prepare_rounds(shapes)  # type: ignore[attr-defined]
        found = answers_of(engine, requests(DecoderParams(DecoderName.VERIFY, shapes[0].canvas_len)))
        plain = adapter_engine(model, 8, MatmulMode.FASTEST)
        assert found == answers_of(plain, requests(DecoderParams(DecoderName.AR, 1)))
        assert delivered > 0, "no round ran ahead"


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    ar, verify = DecoderParams(DecoderName.AR, 1), DecoderParams(DecoderName.VERIFY, 8)
    for mode, config, count, rows_each in product(MatmulMode, (SMALL_NORMED, LAYER_FUSED), (3, 31), (3,)):
        name = f"adapters network {mode} {config.dim} rows={count * rows_each}"
        yield name, partial(check_adapter_network, config, count, rows_each, count == 31, mode)
    for scheme, tolerance in (("fp8", 2e-1), ("int4", 4e-2)):
        yield f"adapters network {scheme}", partial(check_quantised_base, scheme, LAYER_FUSED, tolerance)
    name = "adapters network prompts without a graph"
    yield name, partial(check_adapter_network, SMALL, 30, 16, True, MatmulMode.FASTEST, 64)
    yield "adapters mixed slots", partial(check_mixed_adapters, LAYER_FUSED, 30, ar, 24, 128)
    yield "adapters mixed verify", partial(check_mixed_adapters, SMALL, 30, verify, 24)
    for config, trees, choices in ((SMALL, 0, (1, 2, 3, 0)), (LAYER_FUSED, 16, (1, 3)), (NANO_WIDTHS, 32, (1,))):
        shapes = [RoundShape(len(choices), 16, tree_rows=trees)]
        name = f"adapters rounds {config.dim} tree={trees} {choices}"
        yield name, partial(check_adapter_rounds, config, shapes, choices, 60)
    yield "adapters merged float32", partial(check_mixed_adapters, SMALL, 30, ar, 24, dtype=torch.float32)
