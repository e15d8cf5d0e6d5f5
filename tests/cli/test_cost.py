"""`quicksilver cost`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from quicksilver.cli.app import app
from quicksilver.errors import InvalidRequest

RESULTS = str(Path(__file__).parents[2] / "benchmarks/results")


def run(*words: str) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(app, ["cost", "--results", RESULTS, *words], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.exception


def test_json_has_the_figures_and_their_source() -> None:
    code, text, _ = run("--price", "2.5", "--model", "coder-1.5b", "--streams", "256", "--measured", "engine", "--json")
    (found,) = json.loads(text)
    assert code == 0
    assert found["tokens_per_hour"] == round(found["tokens_per_s"] * 3600)
    assert found["price_per_million_tokens"] == round(2.5 / found["tokens_per_hour"] * 1e6, 6)
    assert (Path(RESULTS) / found["file"]).is_file()


def test_the_table_has_a_row_per_measurement() -> None:
    code, text, _ = run("--price", "2.5", "--model", "nano")
    assert code == 0
    assert "nano" in text
    assert "coder-1.5b" not in text


def test_a_number_of_streams_that_was_not_measured_is_refused() -> None:
    code, _, error = run("--price", "2.5", "--model", "coder-1.5b", "--streams", "100")
    assert code != 0
    assert isinstance(error, InvalidRequest)
    assert "256" in error.message


def test_a_price_is_required() -> None:
    assert run()[0] == 2
