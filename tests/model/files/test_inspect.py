"""Describing a checkpoint from its headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.errors import ModelNotFound
from quicksilver.model.files.inspect import describe
from tests.model.build import random_model, small_config, write_gguf
from tests.support.saved_model import save_model


def test_each_format_is_described_by_its_headers(tmp_path: Path) -> None:
    config = small_config("qwen2", tied_head=True)
    write_gguf(tmp_path / "m.gguf", config, "Q8_0")
    save_model(random_model(config), tmp_path / "plain")
    found = {kind: describe(tmp_path / kind) for kind in ("m.gguf", "plain")}
    assert [summary.format for summary in found.values()] == ["gguf", "safetensors"]
    for summary in found.values():
        assert summary.config.family == "qwen2"
        assert summary.num_params == config.num_params
    assert list(found["m.gguf"].dtypes) == ["Q8_0", "F32"]
    assert found["plain"].dtypes == {"F32": config.num_params}
    assert found["plain"].file_bytes == 4 * config.num_params
    assert found["m.gguf"].file_bytes < found["plain"].file_bytes


def test_the_memory_plan_counts_weights_and_cache(tmp_path: Path) -> None:
    config = small_config()
    save_model(random_model(config), tmp_path)
    summary = describe(tmp_path)
    assert summary.weight_bytes["float32"] == 4 * config.num_params
    assert summary.weight_bytes["int8"] < summary.weight_bytes["bfloat16"]
    # int4 keeps embeddings and head in 16 bits, beside a head in fp8.
    table = config.vocab_size * config.dim
    layers = config.num_params - table * (1 if config.tied_head else 2)
    assert summary.weight_bytes["int4"] == layers * 5 // 8 + table + 2 * (config.num_params - layers)
    assert summary.loading_bytes["int4"] == layers * 5 // 8 + table + 2 * config.num_params


def test_a_missing_checkpoint_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        describe(tmp_path / "nothing")
