from __future__ import annotations

import io
import json
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

from quicksilver.model.adapters import CanvasAdapter, load_adapter
from quicksilver.training.proposals import Proposal, write_proposals
from quicksilver.training.run import main

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke recipe, run once from its command line."""
    folder = tmp_path_factory.mktemp("smoke")
    with redirect_stdout(io.StringIO()) as printed:
        assert main([str(RECIPES / "smoke.toml"), "--run", str(folder), "--device", "cpu", "--commit", "abc"]) == 0
    (folder / "printed.txt").write_text(printed.getvalue())
    return folder


def reports(folder: Path, stage: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "log" / f"{stage}.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def test_a_run_ends_with_its_result_and_its_adapters(smoke: Path) -> None:
    *_, result, adapter = (smoke / "printed.txt").read_text().splitlines()
    expected = r"Result: held-out loss [\d.]+ -> [\d.]+; .* tokens per round with canvas 4 \(text unchanged\)"
    assert re.match(expected, result)
    assert adapter == f"Adapter: {smoke / 'skill.safetensors'}, {smoke / 'canvas.safetensors'}"


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


def test_exports_name_their_origin(smoke: Path) -> None:
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


def test_kto_continues_from_the_skill_and_is_exported(
    smoke: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(smoke, folder)
    made = [Proposal([1, 3 + i % 4], [20 + i, 21, 2], "next", True, i % 2 == 0) for i in range(40)]
    write_proposals(folder / "proposals.json.xz", made)
    small = [
        f"rank={skill_rank(folder)}",
        "row_len=64",
        "rows_per_batch=2",
        "kl_rows=1",
        "head_chunk=64",
        "optim.max_steps=3",
    ]
    words = [
        str(RECIPES / "smoke.toml"),
        "--run",
        str(folder),
        "--device",
        "cpu",
        "--stage",
        "kto",
        "--stage",
        "export",
    ]
    assert main([*words, *(word for text in small for word in ("--set", f"kto.{text}"))]) == 0
    printed = capsys.readouterr()
    for when in ("before", "after"):
        assert f"selectivity {when}: shown -> accepted: 1.00 -> 0.5" in printed.out
    first = reports(folder, "kto")[0]
    assert first["loss"] == pytest.approx(0.5, abs=1e-3)
    before, after = (load_adapter(run / "skill.safetensors") for run in (smoke, folder))
    changed = [
        not torch.equal(a.B, b.B) for (_, _, a), (_, _, b) in zip(before.low_rank(), after.low_rank(), strict=True)
    ]
    assert any(changed)


def skill_rank(folder: Path) -> int:
    return next(iter(load_adapter(folder / "skill.safetensors").low_rank()))[2].A.shape[0]
