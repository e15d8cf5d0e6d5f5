"""`quicksilver hybrid explain`: the route of a request, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quicksilver.cli.app import app
from quicksilver.errors import InvalidRequest
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/guides/hybrid.md"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file of the guide."""
    path = tmp_path / "server.toml"
    path.write_text(blocks("toml", PAGE)[0])
    return path


def explain(config: Path, body: dict[str, object], *options: str) -> str:
    path = config.with_name("body.json")
    path.write_text(json.dumps(body))
    words = ["hybrid", "explain", str(path), "--config", str(config), *options]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


BODY: dict[str, object] = {"model": "auto", "messages": [{"role": "user", "content": "What is 6 times 7?"}]}


def test_the_output_in_the_guide_is_that_of_its_file(config: Path) -> None:
    shown = blocks("text", PAGE)[0]
    assert explain(config, BODY, "--may-leave") == shown


def test_without_consent_the_upstream_is_not_tried(config: Path) -> None:
    shown = explain(config, BODY)
    assert "-  strong: not tried, the project has not consented" in shown
    assert "upstream https" not in shown


def test_the_best_profile_has_no_gate(config: Path) -> None:
    shown = explain(config, {**BODY, "model": "auto:best"}, "--may-leave")
    assert "1. strong" in shown
    assert "next target: if it fails\n" in shown


def test_a_companion_is_a_target_if_it_is_served(config: Path) -> None:
    config.write_text(config.read_text().replace('"coder-1.5b", "strong"]', '"coder-1.5b-edit", "strong"]'))
    assert "2. coder-1.5b-edit" in explain(config, BODY)
    config.write_text("companion = false\n" + config.read_text())
    with pytest.raises(InvalidRequest, match=r"coder-1\.5b-edit"):
        explain(config, BODY)


def test_another_model_and_a_file_without_the_table_are_refused(config: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="auto:best"):
        explain(config, {**BODY, "model": "nano"})
    plain = tmp_path / "plain.toml"
    plain.write_text('model = "nano"\n')
    with pytest.raises(InvalidRequest, match="hybrid routing is off"):
        explain(plain, BODY)
    with pytest.raises(InvalidRequest, match="cannot read"):
        CliRunner().invoke(app, ["hybrid", "explain", "/nowhere.json", "--config", str(config)], catch_exceptions=False)
