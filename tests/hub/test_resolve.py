"""Names and paths -> files."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.errors import ModelNotFound
from quicksilver.hub.catalogue import load_catalogue
from quicksilver.hub.resolve import base_path, default_home, original_path, resolve


def test_a_model_that_is_not_pulled_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="run: quicksilver pull smollm2-135m"):
        resolve("smollm2-135m", tmp_path)


def test_a_pulled_model_is_its_base_and_its_adapters(tmp_path: Path) -> None:
    catalogue = load_catalogue()
    path = base_path(catalogue.bases[catalogue.model("nano").base], tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    files = resolve("nano", tmp_path)
    assert (files.name, files.weights) == ("nano", path)
    assert files.skill is not None
    assert files.canvas is not None


def test_the_original_is_preferred_to_the_registry_file(tmp_path: Path) -> None:
    catalogue = load_catalogue()
    base = catalogue.bases[catalogue.model("nano").base]
    original_path(base, tmp_path).mkdir(parents=True)
    assert resolve("nano", tmp_path).weights == original_path(base, tmp_path)


def test_a_path_is_a_checkpoint_with_the_adapters_next_to_it(tmp_path: Path) -> None:
    weights = tmp_path / "mine.gguf"
    with pytest.raises(ModelNotFound, match=r"mine\.gguf"):
        resolve(str(weights))
    weights.write_bytes(b"")
    assert resolve(str(weights)).canvas is None
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "canvas.safetensors").write_bytes(b"")
    files = resolve(str(weights))
    assert (files.name, files.weights, files.skill) == ("mine", weights, None)
    assert files.canvas == tmp_path / "adapters" / "canvas.safetensors"


def test_the_home_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUICKSILVER_HOME", str(tmp_path))
    assert default_home() == tmp_path
    monkeypatch.delenv("QUICKSILVER_HOME")
    assert default_home() == Path.home() / ".cache" / "quicksilver"
