"""The README's commands and examples run, and what it promises of the Makefile holds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import README, ROOT, blocks, command_lines, run_command, run_python
from tests.support.live import serving
from tests.support.weights import nano


def test_the_two_commands_exist_and_match_the_makefile() -> None:
    assert [line for line in command_lines(README) if line.startswith("make")] == ["make serve", "make test"]
    for target, expected in (("serve", "quicksilver serve"), ("test", "pytest")):
        plan = subprocess.run(["make", "-n", "-C", str(ROOT), target], capture_output=True, text=True, check=True)
        assert expected in plan.stdout


@pytest.mark.contract
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [line for line in command_lines(README) if line.startswith("quicksilver")])
def test_every_quicksilver_command_runs(command: str) -> None:
    nano()
    assert run_command(command)


@pytest.mark.contract
@pytest.mark.timeout(600)
def test_the_http_example_answers_through_a_live_server(tmp_path: Path) -> None:
    nano()
    with serving(tmp_path / "server.log") as url:
        assert "Paris" in run_python(blocks("python", README)[0].replace("http://127.0.0.1:8480", url))


@pytest.mark.contract
@pytest.mark.timeout(300)
def test_the_python_example_answers() -> None:
    nano()
    assert "Paris" in run_python(blocks("python", README)[1])


def test_the_readme_has_its_pictures_and_stays_small() -> None:
    pictures = [ROOT / "docs/images" / name for name in ("resolving.svg", "speed.svg")]
    assert all(f"docs/images/{picture.name}" in README.read_text() for picture in pictures)
    assert all(picture.stat().st_size < 600_000 for picture in pictures)
