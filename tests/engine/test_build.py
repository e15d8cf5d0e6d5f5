"""From a model to an engine: the fingerprint and the facts in EngineInfo."""

from __future__ import annotations

import copy

import pytest

from quicksilver.engine.build import fingerprint, own_share, weight_samples
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest
from tests.support.tiny import tiny_engine, tiny_model


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
