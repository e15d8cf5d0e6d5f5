"""The documentation as text: its pages, their code blocks and the commands in them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}
PROGRAMS = ("quicksilver", "make")


def blocks(language: str, page: Path) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def command_lines(page: Path) -> list[str]:
    """The `quicksilver` and `make` commands in a page's shell blocks and indented blocks, without comments."""
    shown = "\n".join([*blocks("sh", page), *blocks("console", page)]).splitlines()
    indented = [line.strip() for line in page.read_text().splitlines() if line.startswith("    quicksilver ")]
    lines = [line.removeprefix("$ ").removeprefix(".venv/bin/").split("  #")[0].strip() for line in shown + indented]
    return [line for line in lines if line.split(" ")[0] in PROGRAMS]


def run_command(command: str) -> str:
    """Run a `quicksilver` command with nothing on standard input; `bench` with shorter answers."""
    words = shlex.split(command)[1:]
    program = [sys.executable, "-c", "from quicksilver.cli import main; main()", *words]
    if words[0] == "bench":
        program += ["--max-tokens", "8"]
    done = subprocess.run(program, input="", capture_output=True, text=True, env=QUIET, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=QUIET, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
