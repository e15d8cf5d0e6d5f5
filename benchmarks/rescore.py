"""Reads stored reports of evaluations, and scores their answers again, for example after a change of a task."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest
from quicksilver.evals.catalogue import pick_tasks
from quicksilver.evals.report import Cell, Record, Report
from quicksilver.evals.speed import Speed
from quicksilver.evals.task import Answer, Task
from quicksilver.text.conversation import ToolCall


def read_reports(path: Path) -> list[Report]:
    try:
        return [_report(plain) for plain in json.loads(path.read_text())["reports"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path} is not a report of evaluations: {error}") from error


def _report(plain: Mapping[str, Any]) -> Report:
    kept = {name: plain[name] for name in ("model", "settings", "engine", "machine")}
    return Report(cells=tuple(_cell(cell) for cell in plain["cells"]), **kept)


def _cell(plain: Mapping[str, Any]) -> Cell:
    rich = {"speed": Speed(**plain["speed"]), "records": tuple(_records(plain["records"]))}
    return Cell(**{**plain, **rich, "headlines": tuple(plain["headlines"])})


def _records(plain: Iterable[Mapping[str, Any]]) -> Iterable[Record]:
    for record in plain:
        yield Record(**{**record, "calls": tuple((name, arguments) for name, arguments in record["calls"])})


def rescore(report: Report, data: Path) -> Report:
    """Score stored answers again, for example after a change of the scoring code."""
    cells = []
    for cell in report.cells:
        (task,) = pick_tasks((cell.task,))
        cells.append(_rescored(cell, task, data) if cell.decoder != "likelihood" else cell)
    return Report(report.model, tuple(cells), report.settings, report.engine, report.machine)


def _rescored(cell: Cell, task: Task[Any], data: Path) -> Cell:
    items = dict(enumerate(task.load(data)))

    def score(record: Record) -> Record:
        answer = Answer(record.text, tuple(ToolCall(name, arguments) for name, arguments in record.calls))
        metrics = task.score(items[record.index], answer) if not record.error else {}
        return Record(record.index, record.text, record.calls, metrics, record.error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        records = list(pool.map(score, cell.records))
    good = [record.metrics for record in records if not record.error]
    shown = {name: getattr(cell, name) for name in Cell.__slots__}
    shown |= {"metrics": task.summarise(good) if good else {}, "records": tuple(records)}
    return Cell(**shown)
