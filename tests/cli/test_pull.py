"""`quicksilver pull`: the catalogue, and folders that do not fit."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import quicksilver
from tests.support.saved_model import save_model
from tests.support.tiny import tiny_model
from tests.support.weights import MODEL, nano


def test_pull_without_a_name_lists_the_catalogue() -> None:
    assert MODEL in quicksilver("pull").stdout


def test_pull_lets_go_of_a_folder_that_the_adapters_do_not_fit(tmp_path: Path) -> None:
    folder, home = tmp_path / "other", tmp_path / "home"
    save_model(tiny_model(), folder)
    refused = quicksilver("pull", MODEL, "--from", str(folder), home=home)
    assert refused.returncode == 2
    assert "adapter has 30 layers, the model 2" in refused.stderr
    assert f"quicksilver pull {MODEL}" in quicksilver("generate", "x", "--model", MODEL, home=home).stderr


def test_pull_of_a_model_that_is_here_shows_no_download() -> None:
    nano()
    done = quicksilver("pull", MODEL)
    assert done.returncode == 0
    assert "pulling" not in done.stderr
