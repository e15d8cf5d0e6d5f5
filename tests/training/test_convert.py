"""`quicksilver convert`: a checkpoint learns to draft without external data, and its answers do not change."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quicksilver.errors import InvalidRequest
from quicksilver.model.adapters import CanvasAdapter, load_adapter
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from quicksilver.training import stages
from quicksilver.training.comparison import PAGE
from quicksilver.training.convert import _questions, check_convertible, gpu_sizes, main
from tests.support.fakes import tokenizer_json
from tests.support.saved_model import save_model
from tests.support.tiny import TINY


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    save_model(Transformer(replace(TINY, vocab_size=273)), folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    questions = folder / "questions.txt"
    questions.write_text('Why?\n{"prompt": "How so?"}\n\nWhen?\n')
    assert main(arguments(folder)) == 0
    return folder


def arguments(folder: Path) -> list[str]:
    words = [str(folder), "--out", str(folder / "run"), "--questions", str(folder / "questions.txt")]
    return [*words, "--minutes", "0.05", "--rank", "4", "--device", "cpu"]


def test_adapter_is_in_the_folder_that_loading_reads(converted: Path) -> None:
    adapter = load_adapter(converted / "adapters" / "canvas.safetensors")
    assert isinstance(adapter, CanvasAdapter)


def test_what_it_writes_has_not_changed(converted: Path) -> None:
    table = json.loads((converted / "run" / "evaluation.json").read_text())["drafts"]
    assert table["verify K=16"]["all"]["same_as_ar"] == 1.0


def test_a_page_compares_ar_and_verify(converted: Path) -> None:
    found = json.loads((converted / "run" / "evaluation.json").read_text())
    page = (converted / "run" / PAGE).read_text()
    for canvas_len in (8, 16):
        per_round = found["drafts"][f"verify K={canvas_len}"]["all"]["tokens_per_round"]
        assert f"<td>verify, canvas {canvas_len}</td><td>{per_round:.2f}</td>" in page
    assert found["examples"]
    for example in found["examples"]:
        assert example["is_same"]
        assert f"ar: {example['tokens']} forwards. verify, canvas 16: {example['rounds']} rounds" in page
        assert escape(example["answer"]) in page


def test_a_run_that_was_killed_continues_after_its_last_stage(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while answers are written, and again before the adapter is exported."""
    run = converted / "run"
    before = load_file(run / "canvas.safetensors")
    for name in ("generated.safetensors", "canvas.safetensors", PAGE):
        (run / name).unlink()

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    for module, name in ((Path, "replace"), (stages, "export_adapter")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, kill)
            with pytest.raises(KeyboardInterrupt):
                main(arguments(converted))
    assert not (run / "canvas.safetensors").exists()
    # The answers are there, and the steps of the canvas stage are in its checkpoint.
    monkeypatch.setattr(stages, "Generator", None)
    assert main(arguments(converted)) == 0
    assert (run / PAGE).exists()
    after = load_file(run / "canvas.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_other_checkpoints_are_refused_with_the_reason() -> None:
    check_convertible(TINY)
    with pytest.raises(InvalidRequest, match="diffusion checkpoint"):
        check_convertible(replace(TINY, dialect=replace(TINY.dialect, mask_id=3)))
    with pytest.raises(InvalidRequest, match="dense"):
        check_convertible(replace(TINY, partial_rotary=0.5))


def test_sizes_on_a_gpu_follow_its_memory() -> None:
    small = ModelConfig("qwen2", 28, 1536, 8960, 12, 2, 128, 151_936, 32_768)
    large = ModelConfig("qwen3", 36, 4096, 12_288, 32, 8, 128, 151_936, 32_768)
    assert gpu_sizes(small, 135 * 10**9) == {"batch": 1024, "row_len": 1024, "rows_per_batch": 16, "answer_len": 256}
    sizes = gpu_sizes(large, 135 * 10**9)
    assert sizes["batch"] * 1024 * large.kv_bytes_per_token(2) < 60 * 10**9
    assert 1 <= sizes["rows_per_batch"] < 16
    with pytest.raises(InvalidRequest, match="too few to convert"):
        gpu_sizes(large, 20 * 10**9)


def test_recipe_can_be_read_again(converted: Path) -> None:
    from quicksilver.training.recipe import load_recipe

    assert load_recipe(converted / "run" / "recipe.toml").canvas.rank == 4


def test_a_file_without_questions_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with pytest.raises(InvalidRequest, match="has none"):
        _questions(empty)
