"""The lock files cover what pyproject.toml asks for, with hashes, and leave torch to its own step."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("requirements.lock", "requirements-dev.lock", "tests/contract/clients/requirements.lock")


def entries(name: str) -> dict[str, str]:
    """Each locked package with the text of its entry."""
    parts = re.split(r"\n(?=[a-z0-9])", (ROOT / name).read_text())
    return {part.split("==")[0]: part for part in parts}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=;]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_is_pinned_and_has_hashes(name: str) -> None:
    locked = entries(name)
    assert len(locked) > 50
    assert [package for package, text in locked.items() if "==" not in text or "--hash=sha256:" not in text] == []


def test_runtime_lock_covers_the_dependencies_but_torch() -> None:
    assert names(PROJECT["project"]["dependencies"]) - entries("requirements.lock").keys() == {"torch"}


def test_runtime_lock_builds_the_package_without_isolation() -> None:
    assert names(PROJECT["dependency-groups"]["build"]) <= entries("requirements.lock").keys()


def test_development_lock_covers_the_extra_and_agrees_with_the_runtime_lock() -> None:
    locked, runtime = entries("requirements-dev.lock"), entries("requirements.lock")
    extra = names(PROJECT["project"]["optional-dependencies"]["dev"]) - {PROJECT["project"]["name"]}
    assert extra <= locked.keys()
    assert [package for package, text in runtime.items() if locked[package].split()[0] != text.split()[0]] == []


def test_makefile_pins_torch() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^TORCH := torch==\d+\.\d+\.\d+$", makefile, re.MULTILINE)
    assert "--require-hashes --requirement requirements.lock" in makefile
