"""The commands, examples and links of the documentation hold."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from quicksilver.cli.app import app
from quicksilver.core import DecoderParams
from tests.docs.pages import PAGES, README, ROOT, blocks, command_lines, run_command, run_python
from tests.support.weights import nano

COMMANDS = sorted({line for page in PAGES for line in command_lines(page)})
# Commands that end by themselves, need nano alone and take seconds; the README's own are run by test_readme.
RUN = ("pull nano", "generate ")


def named(commands: list[str], program: str) -> list[str]:
    return [command for command in commands if command.split(" ")[0] == program]


@pytest.mark.parametrize("command", named(COMMANDS, "quicksilver"))
def test_quicksilver_commands_have_options_that_exist(command: str) -> None:
    assert parse(shlex.split(command)[1:])


def parse(words: list[str]) -> dict[str, Any]:
    """The options that the command's own parser reads from the words."""
    if words[0] in ("train", "convert"):
        from quicksilver.training import convert, run

        return vars({"train": run, "convert": convert}[words[0]].parser().parse_args(words[1:]))
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    return {"command": command.name, **command.make_context(command.name, words).params}


@pytest.mark.parametrize("command", named(COMMANDS, "make"))
def test_make_targets_exist(command: str) -> None:
    done = subprocess.run(["make", "-n", "-C", str(ROOT), *shlex.split(command)[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [README, ROOT / "docs/quickstart.md", ROOT / "docs/guides/examples.md"])
def test_first_pages_have_only_commands_that_are_checked(page: Path) -> None:
    """`quicksilver` and `make` are parsed or run, modules are imported; the others install or enter an environment."""
    lines = [line.strip() for block in blocks("sh", page) for line in block.splitlines() if line.strip()]
    others = [line for line in lines if line.removeprefix(".venv/bin/").split()[0] not in ("quicksilver", "make")]
    for line in others:
        module = re.fullmatch(r"\.[\w./]+/python -m ([\w.]+)", line)
        is_setup = re.match(r"git clone |(\.venv/bin/)?pip install |\. \.venv/bin/activate", line)
        assert is_setup or (module and (ROOT / f"{module[1].replace('.', '/')}.py").is_file()), line


@pytest.mark.contract
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", [c for c in COMMANDS if any(part in c for part in RUN) and "coder" not in c])
def test_short_commands_run(command: str) -> None:
    nano()
    assert run_command(command)


@pytest.mark.contract
@pytest.mark.timeout(300)
def test_python_guide_runs() -> None:
    """The cells run in one process, one after another, and each prints something."""
    nano()
    cells = blocks("python", ROOT / "docs/guides/python.md")
    printed = run_python("\nprint('-- end of cell --')\n".join(cells)).split("-- end of cell --\n")
    assert len(printed) == len(cells)
    assert all(text.strip() for text in printed)
    assert "Paris" in printed[0]


def test_links_point_to_files() -> None:
    missing = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#\s]+)", page.read_text()):
            if not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert missing == []


def test_files_and_folders_named_in_pages_exist() -> None:
    """Paths of the repository in backticks, in every page but the decisions, which may name removed files."""
    named_paths = re.compile(r"`((?:benchmarks|docs|recipes|tests|tools|quicksilver)/[\w./-]+)`")
    missing = []
    for page in PAGES:
        if "decisions" not in page.parts:
            for path in named_paths.findall(page.read_text()):
                if not (ROOT / path).exists():
                    missing.append(f"{page.relative_to(ROOT)}: {path}")
    assert missing == []


@pytest.mark.parametrize("tool", ["figures", "pictures", "reference", "architecture_map"])
def test_generated_pages_are_current(tool: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_decisions_are_all_in_their_index() -> None:
    folder = ROOT / "docs/design/decisions"
    index = (folder / "index.md").read_text()
    assert [path.name for path in sorted(folder.glob("0*.md")) if f"]({path.name})" not in index] == []


def test_the_glossary_is_short() -> None:
    """Everything else uses the field's usual words."""
    rows = re.findall(r"^\| (?!term \|)(\w.*?) \|", (ROOT / "docs/concepts/glossary.md").read_text(), re.MULTILINE)
    assert 10 <= len(rows) <= 25
    assert rows == sorted(rows)


def test_readme_links_into_the_documentation() -> None:
    assert len(re.findall(r"\]\(docs/[\w/.-]+\.md", README.read_text())) >= 10


def test_model_pages_begin_with_purpose_and_limits() -> None:
    rows = ["for", "languages", "context", "memory", "licence", "weaknesses"]
    for page in (ROOT / "docs/reference/models").glob("*.md"):
        found = re.findall(r"^\| (\w+) \|", page.read_text(), re.MULTILINE)
        assert found[: len(rows)] == rows, page.name


def test_every_decoder_parameter_is_explained() -> None:
    section = (ROOT / "docs/concepts/decoding.md").read_text().split("### Parameters")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [field.name for field in fields(DecoderParams)]


def test_pages_install_from_a_checkout() -> None:
    """The package is on no index, so a command that installs it by name fails."""
    by_name = re.compile(r"pip install [\"']?quicksilver-llm")
    sources = [*PAGES, *sorted((ROOT / "quicksilver").rglob("*.py"))]
    assert [str(path.relative_to(ROOT)) for path in sources if by_name.search(path.read_text())] == []


def test_tables_have_an_empty_line_before_them() -> None:
    """A table row directly after a line of text is rendered as text."""
    assert [place for page in PAGES for place in rows_after_text(page)] == []


def rows_after_text(page: Path) -> list[str]:
    """Rows of tables, outside code blocks, whose line follows a line of text. A comment is no text."""
    found, before, is_code = [], "", False
    for number, line in enumerate(map(str.strip, page.read_text().splitlines()), start=1):
        is_code ^= line.startswith("```")
        if line.startswith("|") and before and not is_code and not before.startswith(("|", "<!--")):
            found.append(f"{page.relative_to(ROOT)}:{number}")
        before = line
    return found
