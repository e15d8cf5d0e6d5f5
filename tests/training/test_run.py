from __future__ import annotations

import json
from pathlib import Path

import pytest

from quicksilver.model.adapters import CanvasAdapter, load_adapter
from quicksilver.training.run import main

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke recipe, run once from its command line."""
    folder = tmp_path_factory.mktemp("smoke")
    assert main([str(RECIPES / "smoke.toml"), "--run", str(folder), "--device", "cpu", "--commit", "abc"]) == 0
    return folder


def reports(folder: Path, stage: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "log" / f"{stage}.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def test_smoke_lowers_both_losses(smoke: Path) -> None:
    for stage, share in (("skill", 0.6), ("canvas", 0.6)):
        losses = [report["loss"] for report in reports(smoke, stage)]
        assert losses[-1] < share * losses[0]


def test_smoke_raises_tokens_per_round_after_rounding(smoke: Path) -> None:
    evaluation = json.loads((smoke / "evaluation.json").read_text())
    assert evaluation["skilled_held_out_loss"] < 0.6 * evaluation["parent_held_out_loss"]
    verified = evaluation["drafts"]["verify K=6"]["verses"]
    assert verified["tokens_per_round"] > 2.5
    assert verified["same_as_ar"] == 1.0


def test_exports_say_where_they_come_from(smoke: Path) -> None:
    canvas = load_adapter(smoke / "canvas.safetensors")
    assert isinstance(canvas, CanvasAdapter)
    assert canvas.metadata["name"] == "smoke"
    assert canvas.metadata["commit"] == "abc"
    assert canvas.metadata["bits"] == "8"
    assert len(canvas.metadata["recipe_sha256"]) == len(canvas.metadata["data_sha256"]) == 64
    assert load_adapter(smoke / "skill.safetensors").embedding_ids is not None


def test_a_finished_stage_is_not_run_again(smoke: Path) -> None:
    before = (smoke / "generated.safetensors").stat().st_mtime_ns
    assert main([str(RECIPES / "smoke.toml"), "--run", str(smoke), "--device", "cpu", "--stage", "generate"]) == 0
    assert (smoke / "generated.safetensors").stat().st_mtime_ns == before


def test_a_missing_skill_adapter_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(RECIPES / "smoke.toml"), "--run", str(tmp_path), "--device", "cpu", "--skill", "nowhere.safetensors"]
    assert main([*words, "--stage", "prepare", "--stage", "generate"]) == 1
    assert "nowhere.safetensors does not exist" in capsys.readouterr().err
