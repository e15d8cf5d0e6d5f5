"""The worker's command line: what is configured arrives in the worker."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from quicksilver.worker import program
from quicksilver.worker.program import WorkerConfig


def test_the_configuration_survives_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[WorkerConfig, Path]] = []

    async def serve(config: WorkerConfig, path: Path) -> None:
        started.append((config, path))

    monkeypatch.setattr(program, "_serve", serve)
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    monkeypatch.setattr(program, "show_start", lambda stream: None)
    config = WorkerConfig("nano", {"device": "cpu", "threads": 2}, {"max_rows": 128, "kv_bytes": 1 << 30})
    arguments = config.command()[config.command().index("--config") :]
    program.main([*arguments, "--socket", "/tmp/x.sock"])
    assert started == [(config, Path("/tmp/x.sock"))]


def test_the_command_runs_this_interpreter_with_json() -> None:
    command = WorkerConfig("nano").command()
    assert command[1:3] == ["-m", "quicksilver.worker"]
    fields: dict[str, Any] = json.loads(command[-1])
    assert fields == {"model": "nano", "load": {}, "engine": {}, "adapters": []}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "line"),
    [(io.StringIO(), "engine worker: compiling\n"), (Terminal(), "\r\x1b[2Kengine worker: compiling\n")],
    ids=["file", "terminal"],
)
def test_progress_of_the_start_is_written(stream: io.StringIO, line: str) -> None:
    log = logging.getLogger("quicksilver.start")
    before = (log.handlers, log.level, log.propagate)
    try:
        program.show_start(stream)
        log.info("compiling")
    finally:
        log.handlers, log.level, log.propagate = before
    assert stream.getvalue() == line
