"""From a model to an engine: the fingerprint and the facts in EngineInfo."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from quicksilver.core import DecodeParams
from quicksilver.engine.build import build_engine, fingerprint, own_share, weight_samples
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest
from quicksilver.model.families import FAMILIES
from tests.model.build import small_config
from tests.support.dialects import DISTINCT, dialect_model
from tests.support.tiny import TINY, generate, random_weights, tiny_engine, tiny_model


def test_two_engines_with_the_same_weights_have_the_same_fingerprint() -> None:
    assert tiny_engine().info.fingerprint == tiny_engine().info.fingerprint


def test_the_fingerprint_changes_with_the_weights() -> None:
    assert tiny_engine().info.fingerprint != tiny_engine(model=tiny_model(1)).info.fingerprint


@pytest.mark.parametrize("weights", ["int8", "fp8", "int4"])
def test_the_fingerprint_changes_with_the_weight_format(weights: str) -> None:
    """The state dict holds the same 16-bit weights: the backend rounds them later."""
    model = copy.copy(tiny_model())
    model.weight_format = weights
    assert tiny_engine(model=model).info.fingerprint != tiny_engine().info.fingerprint


def test_the_fingerprint_changes_with_the_matmul_mode_and_the_backend() -> None:
    config = EngineConfig(num_pages=64, max_rows=96, matmul="batch_invariant")
    assert tiny_engine(config).info.fingerprint != tiny_engine().info.fingerprint
    samples = weight_samples(tiny_model())
    names = {fingerprint("tiny", samples, f"{name} bfloat16 fastest") for name in ("TorchBackend", "CpuBackend")}
    assert len(names) == 2


def test_an_engine_without_memory_for_one_context_does_not_start() -> None:
    with pytest.raises(InvalidRequest, match="one context of 512 tokens"):
        tiny_engine(EngineConfig(kv_bytes=1024))


@pytest.mark.parametrize(
    ("share", "reserved", "expected"),
    [(1.0, 0, 1000), (0.5, 0, 500), (1.0, 300, 700), (0.5, 300, 350), (0.5, 900, 250)],
)
def test_several_models_share_the_free_memory(share: float, reserved: int, expected: int) -> None:
    """What the other models need stays free, up to half of the memory."""
    assert own_share(1000, EngineConfig(memory_share=share, reserved_bytes=reserved)) == expected


@pytest.mark.parametrize("name", DISTINCT)
def test_the_default_canvas_of_a_dialect_is_allowed(name: str) -> None:
    info = build_engine(dialect_model(name), name, EngineConfig(num_pages=8, max_canvas_len=1)).info
    assert info.max_canvas_len == info.default_decoder.canvas_len


def test_a_trained_block_may_be_longer_than_the_usual_canvas() -> None:
    dialect = FAMILIES["nemotron-labs-diffusion"].dialect({"block_size": 64, "mask_token_id": 95}, "")
    engine = build_engine(random_weights(replace(TINY, dialect=dialect), 0), "nemotron", EngineConfig(num_pages=16))
    assert engine.info.max_canvas_len == 64
    assert len(generate(engine, [1, 2, 3], DecodeParams(max_new_tokens=3))) == 3


def test_an_engine_that_keeps_no_kv_needs_no_pages() -> None:
    """LLaDA attends to the whole text in every forward."""
    engine = build_engine(dialect_model("llada"), "llada", EngineConfig(max_rows=64))
    assert engine.info.num_pages == 1
    params = DecodeParams(max_new_tokens=13)
    wide = build_engine(dialect_model("llada"), "llada", EngineConfig(num_pages=64, max_rows=512))
    prompt = [i % 90 for i in range(300)]
    assert generate(engine, prompt, params) == generate(wide, prompt, params)
    assert engine.stats().free_pages == 1


def test_cuda_kernels_compute_networks_with_a_kv_cache() -> None:
    assert small_config("llama").fits_cuda_kernels
    assert small_config("sdar").fits_cuda_kernels
    assert not small_config("dream").fits_cuda_kernels
    assert small_config("llada2").fits_cuda_kernels
    assert small_config("diffusion-gemma").fits_cuda_kernels
