"""`quicksilver serve`: unusable files and unsafe addresses are refused."""

from __future__ import annotations

from pathlib import Path

from tests.model.build import random_model, small_config
from tests.support.command import quicksilver
from tests.support.saved_model import save_model
from tests.support.weights import MODEL, nano


def test_a_broken_config_file_is_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text("prot = 1\n")
    refused = quicksilver("serve", "--config", str(config))
    assert refused.returncode == 2
    assert "prot" in refused.stderr
    config.write_text("port = = 1")
    assert "cannot read" in quicksilver("serve", "--config", str(config)).stderr


def test_a_folder_without_a_tokenizer_is_refused_in_one_line_and_reported_by_inspect(tmp_path: Path) -> None:
    save_model(random_model(small_config("qwen3")), tmp_path / "tiny")
    refused = quicksilver("serve", "--model", str(tmp_path / "tiny"))
    assert refused.returncode == 2
    assert "has no tokenizer.json" in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr
    described = quicksilver("inspect", str(tmp_path / "tiny"))
    assert described.returncode == 0
    assert "has no tokenizer.json" in " ".join(described.stderr.split())


def test_serving_strangers_without_keys_is_refused() -> None:
    nano()
    refused = quicksilver("serve", "--model", MODEL, "--host", "0.0.0.0")
    assert refused.returncode == 2
    assert "--allow-anonymous" in refused.stderr
