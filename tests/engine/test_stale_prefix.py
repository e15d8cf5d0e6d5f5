"""The stale prefix of bidirectional families: the engine equals a loop that keeps keys and values for one sub-block."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.core import DecodeParams, Request, Usage
from quicksilver.diffusion import reference
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.reference import Predict
from quicksilver.engine.admission import in_dialect
from quicksilver.engine.build import STALE_PREFIX, build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.transformer import Transformer
from tests.engine.test_dialects import prompt_of
from tests.model.build import random_model, small_config
from tests.support.dialects import dialect_decoders, dialect_engine, dialect_model
from tests.support.tiny import answers, decode_params, finish_all, generate

FAMILIES = ("llada", "dream")
LENGTHS = (8, 9, 1, 37)


@cache
def stale_model(name: str) -> Transformer:
    model = copy.deepcopy(dialect_model(name))
    model.config = replace(model.config, dialect=replace(model.config.dialect, has_stale_prefix=True))
    return model


def stale_engine(name: str, config: EngineConfig | None = None) -> Engine:
    return build_engine(stale_model(name), name, config or EngineConfig(num_pages=64, max_rows=96))


def stale_predict(model: Transformer) -> Predict:
    """A dense forward over the whole text whenever the context has changed; otherwise over the tail alone, with the
    keys and values of the context as they were."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    kept_len = -1

    @torch.inference_mode()
    def predict(context: Sequence[int], tail: Tail) -> Tensor:
        nonlocal kept_len
        num_context, is_whole = len(context), len(context) != kept_len
        kept_len = num_context

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if is_whole:
                kept[layer] = (k[:num_context], v[:num_context])
            else:
                k, v = (torch.cat((old, new)) for old, new in zip(kept[layer], (k, v), strict=True))
            rows = [each.transpose(0, 1)[None] for each in (q, k, v)]
            return scaled_dot_product_attention(*rows, enable_gqa=True)[0].transpose(0, 1)

        ids = [*context, *tail.token_ids] if is_whole else list(tail.token_ids)
        positions = torch.arange(num_context + len(tail.token_ids))[-len(ids) :]
        hidden = model(model.embed(torch.tensor(ids)), positions, attend)
        last_context = num_context - 1 if is_whole else -1
        return model.logits(hidden[last_context + torch.arange(*tail.proposing_rows)])

    return predict


def oracle(name: str, prompt: list[int], params: DecodeParams) -> list[int]:
    model = stale_model(name)
    request = in_dialect(Request("oracle", tuple(prompt), params), model.config.dialect)
    return reference.generate(stale_predict(model), prompt, request.params, model.config.dialect)


@pytest.mark.parametrize("name", FAMILIES)
def test_engine_equals_a_loop_that_keeps_the_prefix(name: str) -> None:
    engine = stale_engine(name)
    for params in dialect_decoders(name).values():
        for num_tokens in LENGTHS:
            prompt = prompt_of(num_tokens)
            assert generate(engine, prompt, params) == oracle(name, prompt, params)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_request_alone_equals_it_beside_others(name: str) -> None:
    params = dialect_decoders(name)["confidence"]
    engine, prompts = stale_engine(name), [prompt_of(length) for length in LENGTHS]
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), tuple(prompt), params))
    together = answers(finish_all(engine))
    assert [together[str(i)] for i in range(len(prompts))] == [oracle(name, prompt, params) for prompt in prompts]


def test_a_block_that_one_forward_fills_is_exact() -> None:
    """Every forward then computes the whole text."""
    params = decode_params("confidence", rule="static", steps=1, max_new_tokens=22)
    for length in LENGTHS:
        assert generate(stale_engine("llada"), prompt_of(length), params) == generate(
            dialect_engine("llada"), prompt_of(length), params
        )


@pytest.mark.skipif(unsupported_reason() is not None, reason="compiled CPU backend")
def test_the_compiled_backend_computes_the_whole_text_alike() -> None:
    from quicksilver.backends.cpu.backend import CpuBackend
    from tests.support.quantised import quantise_model

    exact = replace(stale_model("llada").config.dialect, has_stale_prefix=False)
    model = quantise_model(random_model(replace(small_config("qwen3"), dialect=exact))).eval()
    params, found = decode_params("confidence", rule="static", steps=1, max_new_tokens=22), []
    for has_stale_prefix in (False, True):
        model.config = replace(model.config, dialect=replace(exact, has_stale_prefix=has_stale_prefix))
        engine = build_engine(model, "llada", EngineConfig(num_pages=64, max_rows=96))
        assert isinstance(engine.backend, CpuBackend)
        found.append([generate(engine, prompt_of(length), params) for length in LENGTHS])
    assert found[0] == found[1]


def test_requests_that_exceed_the_pages_take_turns() -> None:
    engine = stale_engine("dream", EngineConfig(num_pages=6, max_rows=96))
    params = dialect_decoders("dream")["confidence"]
    for i in range(4):
        engine.add(Request(str(i), tuple(prompt_of(37)), params))
    assert {len(tokens) for tokens in answers(finish_all(engine)).values()} == {22}
    assert engine.stats().free_pages == 6


def usage_of(engine: Engine, prompt: list[int], params: DecodeParams) -> Usage:
    engine.add(Request("x", tuple(prompt), params))
    usage = finish_all(engine)["x"][-1].usage
    assert usage is not None
    return usage


@pytest.mark.parametrize("name", FAMILIES)
def test_most_forwards_are_without_the_prompt_and_no_page_is_shared(name: str) -> None:
    params, prompt = dialect_decoders(name)["confidence static"], prompt_of(48)
    exact = usage_of(dialect_engine(name), prompt, params)
    engine = stale_engine(name)
    for _ in range(2):
        usage = usage_of(engine, prompt, params)
        assert usage.rows < 0.7 * exact.rows
        assert usage.cached_tokens == 0


def test_engines_say_that_they_are_approximate() -> None:
    exact, stale = dialect_engine("llada").info, stale_engine("llada").info
    assert (exact.warning, stale.warning) == ("", STALE_PREFIX)
    assert exact.fingerprint != stale.fingerprint
