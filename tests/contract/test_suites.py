"""The runner of the third-party suites: its selection, its exit code and the output of each suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import suites


@pytest.fixture
def fake_suites(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Suites that are commands of Python: `this` succeeds, `json.tool` finds no file."""
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(suites, "SUITES", {"good": ("this",), "bad": ("json.tool", "absent.json")})


@pytest.mark.parametrize(("names", "code"), [(["good"], 0), (["bad"], 1), ([], 1)])
def test_the_exit_code_says_whether_all_passed(
    fake_suites: None, names: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert suites.main(names) == code
    printed = capsys.readouterr().out
    assert ("Beautiful is better" in printed) == ("bad" not in names)
    assert ("absent.json" in printed) == (code == 1)


def test_an_unknown_suite_is_an_error(fake_suites: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        suites.main(["worst"])
    assert "unknown suite worst; the suites are good, bad" in capsys.readouterr().err


def test_only_the_named_environments_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    record = {name: lambda name=name: installed.append(name) for name in suites.SUITES}
    monkeypatch.setattr(suites, "INSTALL", record)
    assert suites.main(["openai", "clients", "--install"]) == 0
    assert installed == ["clients", "openai"]
