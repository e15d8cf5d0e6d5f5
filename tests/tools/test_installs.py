"""Benchmarks install the programs that they compare with, if they are missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import bfcl, cpu_decode


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run."""
    found: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: found.append(command))
    return found


def test_llama_cpp_is_installed_if_it_is_missing(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_decode, "LLAMA_CPP", tmp_path)
    cpu_decode.install_llama_cpp()
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    assert commands[1][-1].startswith("xllamacpp==")
    cpu_decode.install_llama_cpp()
    assert len(commands) == 2


def test_the_leaderboard_is_installed_in_its_version(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfcl, "HOME", tmp_path)
    (tmp_path / "bfcl_eval-2025.1.1.dist-info").mkdir()
    bfcl.install()
    assert [command[-3:] for command in commands] == [["--target", str(tmp_path), "bfcl-eval==2026.3.23"]]
    (tmp_path / "bfcl_eval-2026.3.23.dist-info").mkdir()
    bfcl.install()
    assert len(commands) == 1
