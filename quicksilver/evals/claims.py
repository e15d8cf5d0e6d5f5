"""Published figures and their evidence: the claims of a TOML file against pages, result files and fresh runs.

A claim names the page that publishes a figure, the result file that it comes from, the command that measures it and the
band in which a measured value must lie. Paths in the file are relative to the checkout, the parent of its folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest, ModelNotFound
from quicksilver.hub.catalogue import load_catalogue
from quicksilver.hub.resolve import resolve

# A command is stopped after this many times its expected time, and not before MIN_LIMIT_S.
LIMIT_FACTOR = 5
MIN_LIMIT_S = 1800.0
# Commands that are expected to take longer are run on request only.
DEFAULT_MINUTES = 2.0
# For the answer of an address that a command needs.
REACH_S = 5.0
# Commands of other claims, which run one at a time, keep the load at or below 1.
MAX_LOAD_PER_CORE = 1.5
PLACEHOLDER = "{value}"
# In a quote: any other cell of the table's row.
OTHER_CELL = "*"
# Files that a command writes into its folder.
REPORTS_OF_RUN = "**/*.json"
Step = str | int | Mapping[str, Any]
NamedReports = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Claim:
    """One published figure. `value` leads through a JSON report; `scale` and `format` turn it into the printed text."""

    id: str
    text: str
    hardware: str
    harness: str
    page: str = ""
    quote: str = ""
    result: str = ""
    where: Mapping[str, Any] | None = None
    value: Sequence[Step] = ()
    scale: float = 1.0
    format: str = "g"
    band: Sequence[float] = ()
    command: str = ""
    data: str = ""
    is_measured: bool = False
    # Expected time of the command on two cores.
    minutes: float = 0.0
    # What the command uses: models of the catalogue, Python packages, programs, addresses such as https://github.com.
    needs: Sequence[str] = ()
    # A ratio of times, which other work on the machine changes.
    needs_idle: bool = False

    def __post_init__(self) -> None:
        if bool(self.page) != bool(self.quote) or (self.quote and PLACEHOLDER not in self.quote and self.value):
            raise InvalidRequest(f"claim {self.id}: page and quote belong together, and the quote has {PLACEHOLDER}")
        if self.value and len(self.band) != 2:
            raise InvalidRequest(f"claim {self.id}: a claim with a value has a band of two numbers")
        if not self.value and not self.command:
            raise InvalidRequest(f"claim {self.id}: a claim has a value, or a command that must succeed")
        if self.value and not self.is_measured and not self.result:
            raise InvalidRequest(f"claim {self.id}: a claim that is not measured here has a result file")
        if self.has_run and self.minutes <= 0:
            raise InvalidRequest(f"claim {self.id}: a claim whose command is run has the minutes that it takes")

    @property
    def has_run(self) -> bool:
        """Whether `verify` runs the command."""
        return self.is_measured or not self.value

    @property
    def limit_s(self) -> float:
        """Seconds after which the command is stopped."""
        return max(MIN_LIMIT_S, 60 * LIMIT_FACTOR * self.minutes)

    def printed(self, text: str, value: float) -> str:
        """A text of the claim with the value as the page prints it."""
        return text.replace(PLACEHOLDER, format(value, self.format))

    def holds(self, value: float) -> bool:
        low, high = self.band
        return low <= value <= high


@dataclass(frozen=True, slots=True)
class Outcome:
    """`problems` is empty for a claim that holds. `skipped` says why it was not measured."""

    claim: Claim
    recorded: float | None = None
    measured: float | None = None
    source: str = ""
    skipped: str = ""
    problems: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The outcome as JSON."""
        claim = self.claim
        text = claim.text if self.recorded is None else claim.printed(claim.text, self.recorded)
        named = {"id": claim.id, "text": text, "page": claim.page, "hardware": claim.hardware}
        run = {"harness": claim.harness, "command": claim.command, "band": list(claim.band), "source": self.source}
        found = {"recorded": self.recorded, "measured": self.measured, "skipped": self.skipped}
        return {**named, **run, **found, "passed": not self.problems, "problems": list(self.problems)}


def read_claims(path: Path) -> list[Claim]:
    try:
        entries = tomllib.loads(path.read_text())["claim"]
        claims = [Claim(**entry) for entry in entries]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path} is not a claims file: {error}") from error
    if len({claim.id for claim in claims}) != len(claims):
        raise InvalidRequest(f"{path}: two claims have the same id")
    return claims


def look_up(report: Any, steps: Sequence[Step]) -> float:
    """The number at a path. A mapping as a step selects the first entry of a list that has these fields."""
    for step in steps:
        if isinstance(step, Mapping):
            report = next(entry for entry in report if has_fields(entry, step))
        else:
            report = report[step]
    return float(report.partition("/")[0] if isinstance(report, str) else report)


def has_fields(report: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the report has these values; a dot in a name leads into an object."""
    for name, value in wanted.items():
        found: Any = report
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found != value:
            return False
    return True


def newest_value(claim: Claim, folder: Path, pattern: str) -> tuple[float, str]:
    """The claim's value, in published units, from the newest matching report that has it, and that report's name."""
    return _newest(claim, _read_reports(folder, pattern), pattern)


def _read_reports(folder: Path, pattern: str) -> NamedReports:
    return [(path.name, json.loads(path.read_text())) for path in sorted(folder.glob(pattern))]


def _newest(claim: Claim, reports: NamedReports, pattern: str) -> tuple[float, str]:
    found = []
    for name, report in reports:
        if has_fields(report, claim.where or {}):
            try:
                found.append((str(report.get("date", "")), look_up(report, claim.value), name))
            except (KeyError, IndexError, StopIteration, TypeError, ValueError):
                continue
    if not found:
        raise InvalidRequest(f"no report that matches {pattern} has the value")
    _, value, name = max(found, key=lambda entry: (entry[0], entry[2]))
    return claim.scale * value, name


def current_load_per_core() -> float:
    """The load average of the last minute over the number of cores."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def missing(need: str) -> str:
    """Why a command cannot use the model, address, Python package or program; empty if it can."""
    if need in load_catalogue().models:
        try:
            resolve(need)
        except ModelNotFound:
            return f"needs `quicksilver pull {need}`"
        return ""
    is_there = _is_reachable(need) if "://" in need else shutil.which(need) or importlib.util.find_spec(need)
    return "" if is_there else f"needs {need}"


def _is_reachable(url: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=REACH_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def fill(command: str, names: Mapping[str, str]) -> list[str]:
    """The words of a command with its placeholders replaced."""
    try:
        return [word.format(**names) for word in shlex.split(command)]
    except (KeyError, IndexError, ValueError) as error:
        raise InvalidRequest(f"the command has a placeholder other than {', '.join(names)}: {error}") from error


@dataclass(frozen=True, slots=True)
class Verifier:
    """Checks claims of a checkout. `data` is a folder with evaluation data, which is not part of the project. `gpu` is
    the name of the device, such as NVIDIA H200; a claim for a GPU is measured if its hardware is part of the name.
    Commands that are expected to take more than `minutes` are not run, and one that several claims share runs once;
    `on_run` is called before it."""

    root: Path
    data: Path | None = None
    gpu: str = ""
    is_measuring: bool = True
    minutes: float = DEFAULT_MINUTES
    on_run: Callable[[Claim], None] = lambda claim: None
    load_per_core: Callable[[], float] = current_load_per_core
    # Command and data of a claim -> the reports that it wrote, or its failure.
    _runs: dict[tuple[str, str], NamedReports | InvalidRequest] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def check(self, claim: Claim) -> Outcome:
        if not claim.value:
            return self._check_command(claim)
        problems, recorded, measured, source = list[str](), None, None, ""
        if claim.result:
            try:
                recorded, source = newest_value(claim, self.root, claim.result)
            except InvalidRequest as error:
                problems.append(error.message)
        if recorded is not None:
            problems += self._page_problems(claim, recorded)
            problems += [] if claim.holds(recorded) else [f"the recorded value {recorded:g} is outside the band"]
        skipped = self._reason_to_skip(claim)
        if claim.is_measured and not skipped:
            try:
                measured = self._measure(claim)
            except InvalidRequest as error:
                problems.append(error.message)
        if measured is not None and not claim.holds(measured):
            problems.append(f"the measured value {measured:g} is outside the band")
        return Outcome(claim, recorded, measured, source, skipped, tuple(problems))

    def _check_command(self, claim: Claim) -> Outcome:
        """A claim without a value holds if its command exits with 0."""
        skipped = self._reason_to_skip(claim)
        try:
            if not skipped:
                self._run(claim, self.root)
        except InvalidRequest as error:
            return Outcome(claim, problems=(error.message,))
        return Outcome(claim, skipped=skipped)

    def _page_problems(self, claim: Claim, recorded: float) -> list[str]:
        if not claim.page:
            return []
        printed = claim.printed(claim.quote, recorded)
        pattern = "[^|]*".join(map(re.escape, printed.split(OTHER_CELL)))
        try:
            text = (self.root / claim.page).read_text()
        except OSError:
            return [f"{claim.page} cannot be read"]
        return [] if re.search(pattern, " ".join(text.split())) else [f"{claim.page} does not contain: {printed}"]

    def _reason_to_skip(self, claim: Claim) -> str:
        if not claim.has_run:
            return "its command is run by hand"
        if not self.is_measuring and claim.is_measured:
            return "not measured on request"
        if claim.hardware != "cpu" and claim.hardware not in self.gpu:
            return f"needs a GPU of type {claim.hardware}"
        reasons = [reason for need in claim.needs if (reason := missing(need))]
        if claim.data and (self.data is None or not (self.data / claim.data).exists()):
            reasons.append(f"needs --data with {claim.data}")
        if claim.minutes > self.minutes:
            reasons.append(f"takes {claim.minutes:g} minutes (--minutes {claim.minutes:g})")
        if not reasons and claim.needs_idle and (load := self.load_per_core()) > MAX_LOAD_PER_CORE:
            reasons.append(f"needs an idle machine; the load average is {load:.1f} per core")
        return ", ".join(reasons)

    def _measure(self, claim: Claim) -> float:
        key = (claim.command, claim.data)
        if key not in self._runs:
            self._runs[key] = self._reports_of_run(claim)
        reports = self._runs[key]
        if isinstance(reports, InvalidRequest):
            raise reports
        return _newest(claim, reports, REPORTS_OF_RUN)[0]

    def _reports_of_run(self, claim: Claim) -> NamedReports | InvalidRequest:
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._run(claim, Path(folder))
            except InvalidRequest as error:
                return error
            return _read_reports(Path(folder), REPORTS_OF_RUN)

    def _run(self, claim: Claim, out: Path) -> None:
        """Run the claim's command in the checkout. `{out}` is a folder for its report, `{data}` the claim's data, and
        `{data_folder}` the folder of all evaluation data."""
        folder = self.data or Path()
        places = {"out": out, "data": folder / claim.data, "data_folder": folder}
        words = fill(claim.command, {"python": sys.executable, **{name: str(path) for name, path in places.items()}})
        self.on_run(claim)
        try:
            code, printed = run_command(words, self.root, claim.limit_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidRequest(f"the command failed: {error}") from error
        if code:
            raise InvalidRequest(f"the command exited with {code}: {' '.join(printed.splitlines()[-1:])}")


def run_command(words: Sequence[str], folder: Path, limit_s: float) -> tuple[int, str]:
    """The exit code of a command, and what it printed: its errors, or its output if there are none. If the command is
    stopped, so are the processes that it started."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, (errors or output).strip()
