"""Loading: defaults by device, and the settings that a server changes on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quicksilver.engine.config import EngineConfig
from quicksilver.engine.load import (
    CPU_CANVAS_ROWS,
    CPU_MAX_ROWS,
    LoadConfig,
    for_serving,
    load_engine,
    load_transformer,
    pick_device,
    pick_weights,
)
from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.hub.files import ModelFiles
from quicksilver.model.adapters import Adapter, save_adapter
from quicksilver.model.families import FAMILIES
from tests.support.canvas_adapters import new_canvas
from tests.support.saved_model import save_model
from tests.support.tiny import TINY, random_weights, tiny_model

CPU = LoadConfig(device="cpu")


def test_a_server_on_a_cpu_has_short_canvases_and_a_small_row_budget() -> None:
    config = for_serving(EngineConfig(), CPU)
    assert (config.canvas_rows, config.max_rows) == (CPU_CANVAS_ROWS, CPU_MAX_ROWS)
    assert config.score_pass_rows == CPU_MAX_ROWS // 2


def test_what_an_operator_sets_stays() -> None:
    config = EngineConfig(canvas_rows=30, max_rows=300, max_tenant_rows=1000, shared_step_ms=5.0)
    assert for_serving(config, CPU) == config
    assert for_serving(EngineConfig(), LoadConfig(device="cuda")) == EngineConfig()


def test_auto_takes_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_gpu, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert pick_device("auto") == device
    assert pick_device("cpu") == "cpu"


def test_a_skill_adapter_in_the_place_of_a_canvas_adapter_is_refused(tmp_path: Path) -> None:
    save_model(tiny_model(), tmp_path)
    skill = Adapter([])
    skill.layers = new_canvas(TINY, rank=4, max_canvas_len=8, seed=1).layers
    (tmp_path / "adapters").mkdir()
    save_adapter(tmp_path / "adapters" / "canvas.safetensors", skill, {})
    with pytest.raises(CheckpointRefused, match="mask embeddings"):
        load_transformer(ModelFiles.in_folder("tiny", tmp_path), LoadConfig("cpu", "float32"))


def test_weights_are_picked_and_checked_by_device() -> None:
    assert pick_weights("auto", "cuda") == "bfloat16"
    assert pick_weights("auto", "cpu") in ("int8", "float32")
    assert pick_weights("float32", "cpu") == "float32"
    with pytest.raises(InvalidRequest):
        pick_weights("fp8", "cpu")


@pytest.mark.parametrize(("family", "is_stale"), [("dream", True), ("qwen2", False)])
def test_a_stale_prefix_is_of_families_without_a_cache(tmp_path: Path, family: str, is_stale: bool) -> None:
    dialect = FAMILIES[family].dialect({"mask_token_id": 95}, family)
    save_model(random_weights(replace(TINY, family=family, qkv_bias=True, dialect=dialect), 0), tmp_path)
    for stale_prefix in (False, True):
        config = EngineConfig(num_pages=8, stale_prefix=stale_prefix)
        engine = load_engine(ModelFiles("tiny", tmp_path), LoadConfig("cpu", "float32"), config)
        assert bool(engine.info.warning) == (is_stale and stale_prefix)
