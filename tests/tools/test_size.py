"""tools/size.py reports each limit that a package exceeds, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import size


def write(package: Path, name: str, num_lines: int) -> None:
    path = package / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("def run():\n" + "    pass\n" * (num_lines - 1))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tmp_path / "quicksilver"


def breaches(package: Path) -> list[str]:
    return list(size.breaches(size.measure(package)))


def test_small_package_has_no_breach(package: Path) -> None:
    write(package, "engine/step.py", 9)
    assert breaches(package) == []


def test_long_file_and_long_function_are_named(package: Path) -> None:
    write(package, "engine/step.py", size.MAX_FILE + 1)
    found = breaches(package)
    assert any("quicksilver/engine/step.py has 401 lines" in breach for breach in found)
    assert any("quicksilver/engine/step.py:1 run has 401 lines" in breach for breach in found)


def test_package_over_its_budget_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(package, "engine/step.py", 9)
    monkeypatch.setitem(size.BUDGETS, "engine", 8)
    assert breaches(package) == ["package engine has 9 lines; its budget is 8"]


def test_package_without_a_budget_is_a_breach(package: Path) -> None:
    write(package, "novel/step.py", 9)
    assert breaches(package) == ["package novel has no budget; add one to BUDGETS in tools/size.py"]


def test_total_is_bounded(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(package, "core.py", 9)
    monkeypatch.setattr(size, "MAX_TOTAL", 8)
    assert breaches(package) == ["quicksilver has 9 lines; its budget is 8 (1 over)"]
