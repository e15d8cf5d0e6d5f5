"""`quicksilver convert`: a checkpoint learns to draft without external data, and its answers do not change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quicksilver.errors import InvalidRequest
from quicksilver.model.adapters import CanvasAdapter, load_adapter
from quicksilver.model.files.checkpoint import save_model
from quicksilver.model.transformer import Transformer
from quicksilver.training.convert import _questions, main
from tests.support.fakes import tokenizer_json
from tests.support.tiny import TINY


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    save_model(Transformer(replace(TINY, vocab_size=273)), folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    questions = folder / "questions.txt"
    questions.write_text('Why?\n{"prompt": "How so?"}\n\nWhen?\n')
    words = [str(folder), "--out", str(folder / "run"), "--questions", str(questions)]
    assert main([*words, "--minutes", "0.05", "--rank", "4", "--device", "cpu"]) == 0
    return folder


def test_adapter_is_in_the_folder_that_loading_reads(converted: Path) -> None:
    adapter = load_adapter(converted / "adapters" / "canvas.safetensors")
    assert isinstance(adapter, CanvasAdapter)


def test_what_it_writes_has_not_changed(converted: Path) -> None:
    table = json.loads((converted / "run" / "evaluation.json").read_text())["drafts"]
    assert table["verify K=16"]["all"]["same_as_ar"] == 1.0


def test_recipe_can_be_read_again(converted: Path) -> None:
    from quicksilver.training.recipe import load_recipe

    assert load_recipe(converted / "run" / "recipe.toml").canvas.rank == 4


def test_a_file_without_questions_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with pytest.raises(InvalidRequest, match="has none"):
        _questions(empty)
