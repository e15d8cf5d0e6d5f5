"""Checks of the persistent batch on the device against the same requests one at a time. No pytest here: see
`kernel_checks`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.graph_checks import LAYER_FUSED, NANO_WIDTHS, SMALL, engine_of, generate_all, here, model_of


def slot_engine(model: Transformer, num_slots: int, mode: MatmulMode) -> Engine:
    """An engine that decodes in slots of a `CudaPersistentBatch`."""
    config = model.config
    limits = GraphLimits(max_rows=128, max_segments=max(num_slots, 8), context_len=config.context_len, matmul_mode=mode)
    plain = engine_of(model, None)
    cache = PagedCache.allocate(config, plain.info.num_pages, 16, here().device, here().dtype)
    backend = CudaBackend(GraphExecutor(model, cache, 64, limits))
    backend.prepare_slots(num_slots)
    return Engine(backend, plain.info, within_buffers(replace(plain.config, max_running=max(num_slots, 8)), limits))


def within_buffers(config: EngineConfig, limits: GraphLimits) -> EngineConfig:
    """Batches beyond the buffers would take the eager path, whose numbers differ in the last bits."""
    rows = limits.max_rows
    return replace(config, max_rows=rows, prompt_rows=rows, decode_rows=rows)


def requests(config: ModelConfig, count: int, num_tokens: int) -> list[Request]:
    """Requests with different lengths and sampling options."""
    rng, decoder = random.Random(1), DecoderParams(DecoderName.AR, canvas_len=1)
    options = (
        DecodeParams(num_tokens, decoder=decoder),
        DecodeParams(num_tokens // 2, 0.8, seed=3, decoder=decoder),
        DecodeParams(num_tokens, banned_ids=(1, 5), logit_bias={7: 2.0}, decoder=decoder),
        DecodeParams(num_tokens - 1, 0.8, seed=4, banned_ids=(3,), decoder=decoder),
    )
    prompts = [tuple(rng.randrange(config.vocab_size) for _ in range(rng.randrange(3, 24))) for _ in range(count)]
    return [Request(str(i), prompt, options[i % len(options)]) for i, prompt in enumerate(prompts)]


def check_slots(config: ModelConfig, count: int, num_tokens: int, num_slots: int, at_once: int) -> None:
    """Requests that join and leave a decoding batch have the tokens of each request alone. On a GPU the products are
    batch-invariant, so the numbers are equal too."""
    model, mode = model_of(config), MatmulMode.BATCH_INVARIANT if here().device == "cuda" else MatmulMode.FASTEST
    wanted = requests(config, count, num_tokens)
    limits = GraphLimits(max_rows=128, max_segments=8, context_len=config.context_len, matmul_mode=mode)
    single = engine_of(model, lambda cache: GraphExecutor(model, cache, 64, limits))
    alone = {one.id: generate_all(single, [list(one.prompt_ids)], one.params)["0"] for one in wanted}
    engine, left = slot_engine(model, num_slots, mode), list(wanted)
    found: dict[str, list[int]] = {one.id: [] for one in wanted}
    most = 0
    while left or engine.has_work:
        for request in left[:at_once]:
            engine.add(request)
        left = left[at_once:]
        for event in engine.step():
            assert isinstance(event, Delta)
            assert event.error is None, event.error
            found[event.request_id] += event.token_ids
        most = max(most, len(engine.slots or ()))
    assert most > 2, "the slots were not used"
    assert found == alone
    assert engine.pool.num_free == engine.info.num_pages


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for name, config in (("small", SMALL), ("nano", NANO_WIDTHS), ("fused", LAYER_FUSED)):
        for count in (24, 128):
            yield f"slots {name} {count} requests", partial(check_slots, config, count, 60, count, 40)
