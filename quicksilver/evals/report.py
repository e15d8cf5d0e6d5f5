"""The results of one model, with the settings needed to reproduce them. Reports are read and written as JSON.

A `Cell` is one task under one decoder. Answers are stored, so that they can be inspected and rescored without a model.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quicksilver.evals.speed import Speed, total

# The domain whose main metrics are averaged.
AVERAGED = "multiple_choice"


@dataclass(frozen=True, slots=True)
class Record:
    """One item: its index in the task, the answer and its metrics."""

    index: int
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One task under one decoder. The decoder is `likelihood` if nothing is generated."""

    task: str
    domain: str
    decoder: str
    headlines: tuple[str, ...]
    metrics: Mapping[str, float]
    num_items: int
    num_failed: int
    seconds: float
    speed: Speed = field(default_factory=Speed)
    # Whether the time limit was reached before all requested items were answered.
    is_cut: bool = False
    is_lower_better: bool = False
    records: tuple[Record, ...] = ()

    @property
    def value(self) -> float | None:
        return self.metrics.get(self.headlines[0])


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    cells: tuple[Cell, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)

    def average(self) -> float | None:
        """Mean of the main metrics of the multiple-choice tasks."""
        values = [cell.value for cell in self.cells if cell.domain == AVERAGED and cell.value is not None]
        return sum(values) / len(values) if values else None

    def speeds(self) -> dict[str, dict[str, Speed]]:
        """Cost of the answers by decoder and domain, plus the total under `all`."""
        table: dict[str, dict[str, Speed]] = {}
        for decoder in dict.fromkeys(cell.decoder for cell in self.cells if cell.speed.answers):
            cells = [cell for cell in self.cells if cell.decoder == decoder and cell.speed.answers]
            domains = dict.fromkeys(cell.domain for cell in cells)
            table[decoder] = {name: total(c.speed for c in cells if c.domain == name) for name in domains}
            table[decoder]["all"] = total(cell.speed for cell in cells)
        return table

    def agreement(self, decoder: str) -> tuple[int, int]:
        """Compare `decoder` with `ar`. Returns the number of items with the same text and calls, and the number
        compared."""
        ar = {
            (cell.task, record.index): record for cell in self.cells if cell.decoder == "ar" for record in cell.records
        }
        pairs = [
            (record, ar[cell.task, record.index])
            for cell in self.cells
            if cell.decoder == decoder
            for record in cell.records
            if (cell.task, record.index) in ar and not record.error
        ]
        return sum((a.text, a.calls) == (b.text, b.calls) for a, b in pairs), len(pairs)


def machine_facts() -> dict[str, str]:
    """Date, commit and machine. The commit is `unknown` if the package is not in a git checkout."""
    root = Path(__file__).parent
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        commit = ""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit or "unknown",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def write_reports(reports: Sequence[Report], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"reports": [_plain(report) for report in reports]}, indent=1) + "\n")


def _plain(report: Report) -> dict[str, Any]:
    """Convert to plain JSON values, including derived figures."""
    plain = asdict(report)
    plain["average"] = report.average()
    plain["same_as_ar"] = {decoder: report.agreement(decoder) for decoder in report.speeds()}
    plain["speeds"] = {
        decoder: {
            domain: {
                "tokens": speed.tokens,
                "tokens_per_forward": speed.tokens_per_forward,
                "tokens_per_round": speed.tokens_per_round,
                "acceptance": speed.acceptance,
            }
            for domain, speed in domains.items()
        }
        for decoder, domains in report.speeds().items()
    }
    return plain
