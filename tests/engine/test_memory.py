"""A checkpoint that does not fit is refused before its weights are read, with what would fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.engine import load
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.load import LoadConfig, load_engine
from quicksilver.engine.memory import check_memory, free_memory, size_of
from quicksilver.errors import InvalidRequest
from quicksilver.hub.resolve import ModelFiles
from quicksilver.model.formats.weight_formats import formats_for
from quicksilver.model.gemma_config import GemmaConfig
from tests.model.build import random_model, small_config
from tests.support.saved_model import save_model

CONFIG = small_config("sdar", num_layers=8, context_len=4096)
KV = CONFIG.kv_bytes_per_token(4) * 4096


def test_enough_memory_is_accepted() -> None:
    check_memory(CONFIG, "float32", "cpu", EngineConfig(), 2 * (size_of(CONFIG, "float32") + KV))


def test_a_smaller_format_is_named_if_it_fits() -> None:
    free = int(size_of(CONFIG, "bfloat16") * 1.2)
    with pytest.raises(InvalidRequest, match="--weights bfloat16"):
        check_memory(CONFIG, "float32", "cpu", EngineConfig(num_pages=8), free)


def test_keys_and_values_of_a_smaller_format_count_in_its_own_size() -> None:
    free = int((size_of(CONFIG, "bfloat16") + KV / 2) / 0.9) + 1000
    with pytest.raises(InvalidRequest, match="--weights bfloat16"):
        check_memory(CONFIG, "float32", "cpu", EngineConfig(), free)
    check_memory(CONFIG, "bfloat16", "cpu", EngineConfig(), free)


def test_a_shorter_context_is_named_if_it_fits() -> None:
    free = int((size_of(CONFIG, "float32") + KV * 0.6) / 0.9)
    with pytest.raises(InvalidRequest, match="--context-len 2048"):
        check_memory(CONFIG, "float32", "cpu", EngineConfig(), free)
    check_memory(CONFIG, "float32", "cpu", EngineConfig(context_len=2048), free)


def test_a_model_that_never_fits_is_refused_plainly() -> None:
    with pytest.raises(InvalidRequest, match="No number format"):
        check_memory(CONFIG, "bfloat16", "cuda", EngineConfig(), 1000)


def test_a_model_that_keeps_no_kv_needs_memory_for_weights_only() -> None:
    config = small_config("llada", context_len=1 << 20)
    check_memory(config, "float32", "cpu", EngineConfig(), int(size_of(config, "float32") * 1.2))
    with pytest.raises(InvalidRequest, match="These fit: --weights bfloat16") as refusal:
        check_memory(config, "float32", "cpu", EngineConfig(), int(size_of(config, "bfloat16") * 1.2))
    assert "--context-len" not in str(refusal.value)


def test_formats_follow_the_kernels_of_the_device() -> None:
    assert "int8" in formats_for(CONFIG, "cpu")
    assert {"fp8", "int4"} <= set(formats_for(CONFIG, "cuda"))
    assert set(formats_for(small_config("dream"), "cuda")) == {"float32", "bfloat16"}
    assert set(formats_for(small_config("llada2"), "cpu")) == {"float32", "bfloat16"}
    assert {"fp8", "int4"} <= set(formats_for(small_config("llama"), "cuda"))
    assert set(formats_for(small_config("llada2"), "cuda")) == {"float32", "bfloat16", "fp8"}
    assert set(formats_for(small_config("diffusion-gemma"), "cuda")) == {"float32", "bfloat16", "fp8"}


def test_diffusion_gemma_is_rounded_layer_by_layer() -> None:
    """Loading takes little more than the 16-bit weights, and less than both copies of all layers."""
    config = small_config("diffusion-gemma", num_layers=12, gemma=GemmaConfig((False,) * 11 + (True,), 9, 32, 1))
    tables = config.vocab_size * config.dim
    assert config.num_params * 2 < size_of(config, "fp8") < config.num_params * 2.2 + tables


def test_free_memory_is_that_of_this_machine() -> None:
    assert free_memory("cpu") > 0


def test_loading_checks_before_it_reads_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(random_model(CONFIG), tmp_path)
    monkeypatch.setattr(load, "free_memory", lambda device: 1000)
    monkeypatch.setattr(load, "load_model", None)
    with pytest.raises(InvalidRequest, match="sdar needs"):
        load_engine(ModelFiles("x", tmp_path), LoadConfig(device="cpu", weights="float32"), EngineConfig())


@pytest.mark.parametrize("weights", ["fp8", "int4"])
def test_formats_made_from_16_bit_weights_need_both_copies_while_they_are_loaded(weights: str) -> None:
    config = small_config("llama")
    half = size_of(config, "bfloat16")
    assert size_of(config, weights) > half
    with pytest.raises(InvalidRequest, match="needs"):
        check_memory(config, weights, "cuda", EngineConfig(num_pages=8), half)
