"""`quicksilver tune`: a model is tuned on this machine; bad data is explained; an interrupted job continues."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from quicksilver.accounts.objects import open_local
from quicksilver.tuning.jobs import JobStore
from quicksilver.tuning.models import list_models
from tests.support.command import quicksilver
from tests.support.tuning import chat_lines, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("toy")).weights


def tune(base: Path, home: Path, *words: str) -> tuple[int, str, str]:
    done = quicksilver("tune", *words, "--model", str(base), "--device", "cpu", "--threads", "1", home=home)
    return done.returncode, done.stdout, done.stderr


def test_a_model_is_tuned_and_its_adapter_written(base: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "adapter.zip"
    data.write_bytes(chat_lines())
    words = [str(data), "--validation", str(data), "--epochs", "2", "--suffix", "mine", "--rank", "4"]
    code, shown, errors = tune(base, tmp_path, *words, "--out", str(out))
    assert code == 0, errors
    assert f"model: ft:{base.name}:mine:" in shown
    assert "validation loss:" in shown
    assert f"Serve: quicksilver serve --model {base}" in shown
    assert errors.startswith("reading the data and the model\n")
    assert "training loss" in errors
    with zipfile.ZipFile(out) as archive:
        assert json.loads(archive.read("adapter_config.json"))["r"] == 4
    store = open_local(tmp_path / "objects.db")
    assert [model.base for model in list_models(store, "") if not model.step] == [base.name]
    assert JobStore(store).num_open("") == 0
    store.close()


def test_bad_data_is_explained_by_line(base: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_bytes(chat_lines() + b'{"messages": 1}\n{"text": 2}\n')
    code, _, errors = tune(base, tmp_path, str(data))
    assert code == 2
    assert "line 21: /messages" in errors
    assert "line 22: /text" in errors
    assert "Traceback" not in errors


def test_a_missing_file_and_a_bad_option_are_explained(base: Path, tmp_path: Path) -> None:
    code, _, errors = tune(base, tmp_path, str(tmp_path / "none.jsonl"))
    assert (code, "cannot read" in errors) == (2, True)
    data = tmp_path / "data.jsonl"
    data.write_bytes(chat_lines())
    code, _, errors = tune(base, tmp_path, str(data), "--method", "magic")
    assert (code, "method.type" in errors) == (2, True)
