"""The commands of `docs/claims.toml` have the arguments that their programs require."""

from __future__ import annotations

import argparse
import runpy
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from quicksilver.evals.claims import Claim, read_claims
from tests.docs.pages import ROOT
from tests.docs.test_pages import parse

NAMES = {"python": "python", "out": "OUT", "data": "DATA", "data_folder": "DATA"}
CLAIMS = read_claims(ROOT / "docs/claims.toml")
COMMANDS = sorted({claim.command.format(**NAMES) for claim in CLAIMS})
# The first imports Triton, which needs a GPU; the second reads no argument but --check.
NOT_PARSED = ("benchmarks.gpu_forward", "tools/figures.py")
PROGRAMS = [
    command for command in COMMANDS if command.startswith("python ") and not any(name in command for name in NOT_PARSED)
]


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.hardware == "cpu"], ids=lambda claim: claim.id)
def test_a_figure_of_a_cpu_is_measured_by_verify(claim: Claim) -> None:
    assert claim.has_run


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.has_run], ids=lambda claim: claim.id)
def test_a_command_that_verify_runs_is_complete(claim: Claim) -> None:
    """It has no word in capitals that the reader would have to replace, and names its data."""
    assert not [word for word in shlex.split(claim.command) if word.isalpha() and word.isupper()]
    assert not claim.value or "{out}" in claim.command
    assert bool(claim.data) == ("{data}" in claim.command or "{data_folder}" in claim.command)


def test_claims_that_share_a_command_take_equally_long() -> None:
    minutes: dict[str, set[float]] = {}
    for claim in CLAIMS:
        if claim.has_run:
            minutes.setdefault(claim.command, set()).add(claim.minutes)
    assert [command for command, found in minutes.items() if len(found) > 1] == []


class ParsedError(Exception):
    """The program has read its arguments."""


@pytest.mark.parametrize("command", PROGRAMS)
def test_python_programs_accept_their_arguments(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs until it has parsed its arguments. A missing or unknown one exits with 2."""
    program, *arguments = shlex.split(command)[1:]
    if program == "-c":
        parse(arguments[1:])
        return
    whole = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, *given: object) -> NoReturn:
        whole(parser)
        raise ParsedError

    name = arguments.pop(0) if program == "-m" else str(ROOT / program)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.delitem(sys.modules, name, raising=False)
    start = partial(runpy.run_module, name, alter_sys=True) if program == "-m" else partial(runpy.run_path, name)
    with pytest.raises(ParsedError):
        start(run_name="__main__")


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith("python ")])
def test_other_commands_accept_their_arguments(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "quicksilver":
        assert parse(arguments)
    elif program == "make":
        subprocess.run(["make", "-n", "-C", str(ROOT), *arguments], capture_output=True, check=True)
    else:
        usage = (ROOT / program).read_text().split(f"{Path(program).name} ", 1)[1].splitlines()[0]
        required = [word for word in usage.split() if not word.startswith("[")]
        assert len(arguments) >= len(required), usage
