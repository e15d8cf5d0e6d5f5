"""Measured throughput and its cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.evals.throughput import Throughput, choose, cost_of, read_report, read_results

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def write_load(folder: Path, name: str, date: str, tokens_per_s: float, url: str | None = None) -> None:
    report = {
        "benchmark": "load",
        "date": date,
        "machine": {"cpu": "x86_64", "cores": 4, "gpu": "GPU X"},
        "settings": {"engine": url is None, "url": url, "model": "m"},
        "rows": [
            {"streams": 8, "tokens_per_s": tokens_per_s, "schema": False},
            {"streams": 8, "tokens_per_s": 1, "schema": True},
            {"requests": 64, "equal_alone": 64},
        ],
    }
    (folder / name).write_text(json.dumps(report))


def test_cost_is_price_over_tokens() -> None:
    measured = Throughput("m", "GPU X", "engine", 8, 1000.0, "2026-01-01", "f.json")
    assert cost_of(measured, 3.6).tokens_per_hour == 3_600_000
    assert cost_of(measured, 3.6).price_per_million == pytest.approx(1.0)
    assert cost_of(measured, 3.6, utilisation=0.5).price_per_million == pytest.approx(2.0)


def test_the_newest_figure_counts_and_paths_are_kept_apart(tmp_path: Path) -> None:
    write_load(tmp_path, "a.json", "2026-02-01T00:00:00Z", 200)
    write_load(tmp_path, "b.json", "2026-01-01T00:00:00Z", 100)
    write_load(tmp_path, "c.json", "2026-01-01T00:00:00Z", 50, url="http://127.0.0.1:8480")
    (tmp_path / "d.json").write_text('{"benchmark": "other"}')
    (tmp_path / "e.json").write_text("[1, 2]")
    found = read_results(tmp_path)
    assert [(each.path, each.streams, each.tokens_per_s, each.file) for each in found] == [
        ("engine", 8, 200.0, "a.json"),
        ("server", 8, 50.0, "c.json"),
    ]


def test_what_was_not_measured_is_refused_with_what_was(tmp_path: Path) -> None:
    write_load(tmp_path, "a.json", "2026-02-01T00:00:00Z", 200)
    found = read_results(tmp_path)
    assert choose(found, "m", 8, "gpu x") == found
    for wrong in ({"model": "n"}, {"streams": 9}, {"hardware": "GPU Y"}, {"path": "server"}):
        with pytest.raises(InvalidRequest, match=r"no measurement fits; measured: m on GPU X \(engine\): 8 streams"):
            choose(found, **wrong)  # type: ignore[arg-type]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--results"):
        read_results(tmp_path / "nowhere")


def test_the_published_results_give_figures_for_both_models() -> None:
    found = read_results(RESULTS)
    assert {each.model for each in found} == {"nano", "coder-1.5b"}
    by_load = json.loads((RESULTS / "load-20261117-141500.json").read_text())["rows"][1]
    (engine,) = choose(found, "coder-1.5b", by_load["streams"], "H200", "engine")
    assert engine.tokens_per_s == by_load["tokens_per_s"]
    assert choose(found, "coder-1.5b", 1, "H200", "server")


def test_reports_over_the_socket_are_a_path_of_their_own_and_open_loops_are_left_out() -> None:
    machine = {"gpu": "H200", "cpu": "x86_64", "cores": 2}
    report = {"benchmark": "load", "date": "2026-11-17", "machine": machine,
              "rows": [{"streams": 4, "tokens_per_s": 50}]}  # fmt: skip
    settings = {"engine": False, "socket": True, "model": "m", "rate": 0.0}
    assert [one.path for one in read_report(report | {"settings": settings}, "f")] == ["socket"]
    assert not list(read_report(report | {"settings": settings | {"rate": 5.0}}, "f"))
