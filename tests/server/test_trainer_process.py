"""TrainerProcess: started for open jobs, told about waiting requests, stopped with the server, started again."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quicksilver.accounts.records import StoredObject
from quicksilver.core import EngineStats
from quicksilver.hub.files import ModelFiles
from quicksilver.server import trainer_process
from quicksilver.server.trainer_process import TrainerProcess
from quicksilver.tuning.jobs import JobStore, TuningJob, new_job
from quicksilver.tuning.settings import TrainerSettings
from tests.server.conftest import Served

# Writes its process id and what it reads into a file until its input ends.
PROGRAM = """
import os, sys
path = sys.argv[1]
with open(path, "a") as out:
    out.write(f"{os.getpid()} ")
    sys.stdin.buffer.readline()
    out.flush()
    while letter := sys.stdin.buffer.read(1):
        out.write(letter.decode())
        out.flush()
    out.write("end ")
"""


MODELS = {"nano": ModelFiles("nano", Path("nano.gguf"))}


class StatsEngine:
    """An engine whose number of waiting requests the test sets."""

    def __init__(self) -> None:
        self.waiting = 0

    async def stats(self) -> EngineStats:
        return EngineStats(waiting=self.waiting)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_process, "POLL_S", 0.02)
    monkeypatch.setattr(trainer_process, "LOOK_S", 0.02)


@asynccontextmanager
async def watching(served: Served, engine: StatsEngine, path: Path) -> AsyncIterator[TrainerProcess]:
    engines: Any = {"nano": engine}
    command = (sys.executable, "-c", PROGRAM, str(path))
    trainer = TrainerProcess(served.services.storage, engines, TrainerSettings(path.parent, MODELS), command)
    task = asyncio.create_task(trainer.watch())
    try:
        yield trainer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def add_job(served: Served, model: str = "nano") -> None:
    job = TuningJob("", new_job(model, "file-1", {"type": "supervised"}))
    await served.services.storage.run(lambda store: JobStore(store).create(job))


async def wait_for(path: Path, ending: str) -> str:
    async with asyncio.timeout(20):
        while not (path.exists() and path.read_text().endswith(ending)):
            await asyncio.sleep(0.01)
    return path.read_text()


async def test_no_process_is_started_without_a_job(served: Served, tmp_path: Path) -> None:
    await add_job(served, "a model of another server")
    async with watching(served, StatsEngine(), tmp_path / "log") as trainer:
        await asyncio.sleep(0.2)
        assert trainer.process is None


async def test_the_process_is_told_when_requests_wait_and_ends_with_the_server(served: Served, tmp_path: Path) -> None:
    engine, path = StatsEngine(), tmp_path / "log"
    await add_job(served)
    async with watching(served, engine, path):
        await wait_for(path, " ")
        engine.waiting = 1
        await wait_for(path, "b")
        engine.waiting = 0
        await wait_for(path, "bi")
    assert path.read_text().endswith("biend ")


async def test_a_killed_process_is_started_again(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "log"
    await add_job(served)
    async with watching(served, StatsEngine(), path) as trainer:
        await wait_for(path, " ")
        assert trainer.process is not None
        first = trainer.process.pid
        os.kill(first, 9)
        async with asyncio.timeout(20):
            while trainer.process.pid == first:
                await asyncio.sleep(0.01)


async def test_old_captures_are_deleted_without_a_job(served: Served, tmp_path: Path) -> None:
    storage = served.services.storage
    await storage.run(lambda store: store.put("", [StoredObject("capture", "old", b"{}", created_at=1)]))
    async with watching(served, StatsEngine(), tmp_path / "log"), asyncio.timeout(20):
        while await storage.run(lambda store: store.ids("", "capture", "")):
            await asyncio.sleep(0.01)
    assert await storage.run(lambda store: store.get("", "capture", "old")) is None
