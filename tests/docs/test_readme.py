"""The commands and the Python code of the README run, and its links resolve."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import serving
from tests.support.weights import nano

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def commands(start: str) -> list[str]:
    lines = "\n".join(blocks("sh")).splitlines()
    return [line.split("#")[0].strip() for line in lines if line.startswith(start)]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=QUIET, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_two_commands_are_there_and_do_what_the_makefile_says() -> None:
    assert commands("make") == ["make serve", "make test"]
    for target, expected in (("serve", "quicksilver serve"), ("test", "pytest")):
        plan = subprocess.run(["make", "-n", "-C", str(ROOT), target], capture_output=True, text=True, check=True)
        assert expected in plan.stdout


@pytest.mark.contract
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [c for c in commands("quicksilver") if "serve" not in c])
def test_every_quicksilver_command_runs(command: str) -> None:
    nano()
    words = shlex.split(command)[1:]
    program = [sys.executable, "-c", "from quicksilver.cli import main; main()", *words]
    if words[0] == "bench":
        program += ["--max-tokens", "8"]
    done = subprocess.run(program, input="", capture_output=True, text=True, env=QUIET, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.contract
@pytest.mark.timeout(300)
def test_the_python_example_answers() -> None:
    nano()
    assert "Paris" in run_python(blocks("python")[0])


@pytest.mark.contract
@pytest.mark.timeout(600)
def test_the_http_example_answers_through_a_live_server(tmp_path: Path) -> None:
    nano()
    with serving(tmp_path / "server.log") as url:
        code = blocks("python")[1].replace("http://127.0.0.1:8480", url)
        assert run_python(code).strip()


def test_files_that_the_readme_and_docs_name_exist() -> None:
    missing = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            if not (page.parent / target).exists() and not (ROOT / target).exists():
                missing.append(f"{page.name}: {target}")
    assert missing == []
