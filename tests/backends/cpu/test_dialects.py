"""Diffusion dialects on the compiled CPU backend in int8: the text does not depend on batches, chunks or the cache."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.core import DecodeParams, Request
from quicksilver.diffusion import reference
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.engine.admission import in_dialect
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.transformer import Transformer
from tests.support.dialects import DISTINCT, MASK_ID, dialect_decoders, tiny_dialect, tiny_experts, tiny_gemma
from tests.support.tiny import TINY, answers, finish_all, generate, random_weights

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.backend import CpuBackend
from tests.support.quantised import quantise_model

PLAIN = [
    name
    for name in DISTINCT
    if tiny_experts(name) is None and tiny_gemma(name) is None and not tiny_dialect(name).has_draft_seed
]
FULL = [name for name in PLAIN if not tiny_dialect(name).keeps_kv]
CASES = [(name, label) for name in PLAIN for label in dialect_decoders(name)]


@cache
def int8_model(name: str) -> Transformer:
    """Heads of 16 numbers: the compiled kernels need whole vectors."""
    config = replace(TINY, head_dim=16, dialect=tiny_dialect(name))
    return quantise_model(copy.deepcopy(random_weights(config, 0))).eval().requires_grad_(False)


def int8_engine(name: str, config: EngineConfig | None = None) -> Engine:
    engine = build_engine(int8_model(name), name, config or EngineConfig(num_pages=64, max_rows=96))
    assert isinstance(engine.backend, CpuBackend)
    return engine


def prompt_of(num_tokens: int) -> list[int]:
    return [random.Random(num_tokens).randrange(MASK_ID) for _ in range(num_tokens)]


def uncached(name: str) -> reference.Predict:
    """`predict` of the reference: the compiled forward over the whole text, into an empty cache each time."""
    backend, dialect = int8_engine(name).backend, tiny_dialect(name)
    assert isinstance(backend, CpuBackend)

    @torch.inference_mode()
    def predict(context: Seq[int], tail: Tail) -> Tensor:
        request = Request("oracle", tuple(context) or (0,), DecodeParams(decoder=dialect.default))
        sequence = Sequence(request, make_decoder(dialect.default, dialect), dialect=dialect, pages=list(range(64)))
        return backend.model.logits(backend._forward([Work(sequence, 0, len(context), tail)]))

    return predict


@pytest.mark.parametrize(("name", "label"), CASES)
def test_cached_equals_uncached(name: str, label: str) -> None:
    params = dialect_decoders(name)[label]
    block = max(tiny_dialect(name).block_len, 4)
    for num_tokens in (2 * block, 2 * block + 1, 3 * block - 1):
        prompt = prompt_of(num_tokens)
        request = in_dialect(Request("oracle", tuple(prompt), params), tiny_dialect(name))
        oracle = reference.generate(uncached(name), prompt, request.params, tiny_dialect(name))
        assert generate(int8_engine(name), prompt, params) == oracle


@pytest.mark.parametrize("name", PLAIN)
def test_a_request_alone_equals_it_in_a_batch_and_in_chunks(name: str) -> None:
    mates = list(dialect_decoders(name).values())
    prompts = [prompt_of(3 + 9 * i) for i in range(5)]
    alone = [generate(int8_engine(name), prompt, mates[i % len(mates)]) for i, prompt in enumerate(prompts)]
    engine = int8_engine(name, EngineConfig(num_pages=128, max_rows=18))
    for i in (2, 0, 4, 1, 3):
        engine.add(Request(str(i), tuple(prompts[i]), mates[i % len(mates)]))
    together = answers(finish_all(engine))
    assert [together[str(i)] for i in range(5)] == alone


@pytest.mark.parametrize("name", PLAIN)
def test_a_prefix_hit_equals_a_cold_start(name: str) -> None:
    params = next(iter(dialect_decoders(name).values()))
    engine = int8_engine(name)
    cold = generate(engine, prompt_of(50), params)
    engine.add(Request("warm", tuple(prompt_of(50)), params))
    deltas = finish_all(engine)
    assert answers(deltas)["warm"] == cold
    usage = deltas["warm"][-1].usage
    assert usage is not None
    assert usage.cached_tokens == (48 if tiny_dialect(name).keeps_kv else 0)


@pytest.mark.parametrize("name", FULL)
def test_a_full_context_needs_no_pages(name: str) -> None:
    params = next(iter(dialect_decoders(name).values()))
    engine = int8_engine(name, EngineConfig(max_rows=64))
    assert engine.info.num_pages == 1
    assert generate(engine, prompt_of(150), params) == generate(int8_engine(name), prompt_of(150), params)
