"""The prepare stage for own files: rows, held-out rows and facts; a stage that failed is not done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.journal import Journal
from quicksilver.training.pack import PackedRows, documents_of
from quicksilver.training.prepare_own import prepare_own_data
from quicksilver.training.prepared_data import FACTS, HELD, TRAIN, Facts
from quicksilver.training.recipe import Data, load_recipe
from quicksilver.training.run import find_base, main
from tests.support.small_tokenizer import small_tokenizer

ROOT = Path(__file__).parents[2]


def chats(path: Path, count: int, answer: str = "Yes.") -> Path:
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    path.write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(count)))
    return path


@pytest.fixture(autouse=True)
def _small_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "load", classmethod(lambda cls, path: small_tokenizer()))


def prepared(folder: Path, files: dict[str, str], **settings: object) -> Facts:
    data = Data(files=files, reserves_tokens=False, **settings)  # type: ignore[arg-type]
    return prepare_own_data(data, Path("base"), folder, Journal(folder / "log", "prepare"))


def test_one_row_of_ten_is_held_out(tmp_path: Path) -> None:
    facts = prepared(tmp_path, {"mine": str(chats(tmp_path / "a.jsonl", 40))}, row_len=256)
    assert facts.documents == {"mine": 40}
    train, held = (list(documents_of(PackedRows.load(tmp_path / name))) for name in (TRAIN, HELD))
    assert (len(train), len(held)) == (36, 4)
    assert small_tokenizer().decode(train[0].token_ids[train[0].is_answer].tolist()) == "Yes."
    assert Facts.load(tmp_path) == facts


def test_rows_that_are_too_long_are_left_out_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = chats(tmp_path / "a.jsonl", 5)
    path.write_text(path.read_text() + chats(tmp_path / "b.jsonl", 1, "x" * 500).read_text())
    assert prepared(tmp_path, {"mine": str(path)}, row_len=256).documents == {"mine": 5}
    assert "left out 1 rows longer than 256 tokens (lines 6)" in capsys.readouterr().out
    with pytest.raises(InvalidRequest, match=r"no row fits 256 tokens; raise data\.row_len"):
        prepared(tmp_path / "none", {"mine": str(tmp_path / "b.jsonl")}, row_len=256)


def test_a_prepare_stage_that_failed_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "base").mkdir()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'name = "own"\nstages = ["prepare"]\n[base]\nweights = "{tmp_path}/base"\n'
        f'[data]\nreserves_tokens = false\n[data.files]\nmine = "{tmp_path}/mine.jsonl"\n'
    )
    words = [str(recipe), "--run", str(tmp_path / "run"), "--device", "cpu"]
    assert main(words) == 1
    assert "mine.jsonl cannot be read" in capsys.readouterr().err
    (tmp_path / "run/data").mkdir(exist_ok=True)
    (tmp_path / "run/data" / TRAIN).write_bytes(b"left by a crash")
    chats(tmp_path / "mine.jsonl", 20)
    assert main(words) == 0
    assert (tmp_path / "run/data" / FACTS).exists()
    assert PackedRows.load(tmp_path / "run/data" / TRAIN).num_rows > 0


@pytest.mark.parametrize(
    ("table", "message"),
    [("", "name your files in [data.files]"), ('[data.files]\na = "a"\n[data.rows]\nchat = 1\n', "not both")],
)
def test_a_recipe_without_usable_data_is_refused(
    tmp_path: Path, table: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'name = "own"\nstages = ["prepare"]\n[base]\nweights = "{tmp_path}"\n{table}')
    assert main([str(recipe), "--run", str(tmp_path / "run"), "--device", "cpu"]) == 1
    assert message in capsys.readouterr().err


def test_a_base_is_a_path_or_a_name(tmp_path: Path) -> None:
    assert find_base("") == (None, None)
    assert find_base(str(tmp_path)) == (tmp_path, None)
    with pytest.raises(Exception, match="no model, folder or file named"):
        find_base("no-such-model")


def test_the_recipe_for_a_cpu_names_rows_that_exist() -> None:
    recipe = load_recipe(ROOT / "recipes/finetune-cpu.toml")
    assert recipe.base.weights == "nano"
    assert all((ROOT / file).is_file() for file in recipe.data.files.values())
