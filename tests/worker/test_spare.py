"""Spare workers: loaded before they are needed, where memory allows, and replaced when they are lost."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from quicksilver.core import Request
from quicksilver.worker import spare as module
from quicksilver.worker.client import RemoteEngine
from quicksilver.worker.process import WorkerProcess
from quicksilver.worker.spare import SpareWorker
from tests.support.tiny import decode_params, generate, tiny_engine
from tests.worker.test_client import COMMAND, PROMPT, collect, kill
from tests.worker.test_process import LISTENS, start


async def test_a_spare_worker_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.worker.client.FIRST_DELAY_S", 0.0)
    monkeypatch.setattr("quicksilver.worker.spare.RESERVE_BYTES", 0)
    client = await RemoteEngine([*COMMAND, "--forward-s", "0.005"], has_spare=True).start()
    try:
        first = client.socket_path
        second = first.with_name("engine-2.sock")
        async with asyncio.timeout(60):
            while not second.exists():
                await asyncio.sleep(0.02)
        request = Request("open", PROMPT, decode_params("ar", max_new_tokens=200))
        stream = asyncio.create_task(collect(client, request))
        await asyncio.sleep(0.1)
        await kill(client)
        tokens, _, last = await stream
        assert tokens == generate(tiny_engine(), request.prompt_ids, request.params)
        assert last.usage is not None
        assert last.usage.migrated == 1
        assert client.socket_path == second
        assert (await client.stats()).restarts == 1
    finally:
        await client.close()


async def test_no_spare_worker_is_loaded_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.worker.client.FIRST_DELAY_S", 0.0)
    monkeypatch.setattr("quicksilver.worker.spare.RESERVE_BYTES", 1 << 60)
    client = await RemoteEngine(COMMAND, has_spare=True).start()
    try:
        await asyncio.sleep(0.2)
        assert client._spare.pid is None
    finally:
        await client.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_spare_that_is_lost_is_replaced(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESERVE_BYTES", -(1 << 60))
    monkeypatch.setattr(module, "NEXT_DELAY_S", 0.0)
    monkeypatch.setattr(module, "CHECK_S", 0.05)
    started: list[WorkerProcess] = []

    async def start_next() -> WorkerProcess:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(await start(folder, LISTENS))
        return started[-1]

    spare = SpareWorker(start_next)
    keeping = asyncio.create_task(spare.keep(tiny_engine().info, 0.0))
    async with asyncio.timeout(60):
        while not (started and started[0].is_listening):
            await asyncio.sleep(0.01)
        assert spare.pid == started[0].pid
        os.kill(started[0].pid, number)
        while spare.pid == started[0].pid or len(started) == 1:
            await asyncio.sleep(0.01)
    assert not started[0].is_listening, "its files are removed"
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert spare.take() is started[1]
    assert spare.pid is None
    await started[1].stop()
