"""Spare workers: loaded before they are needed, where memory allows."""

from __future__ import annotations

import asyncio

import pytest

from quicksilver.core import Request
from quicksilver.worker.client import RemoteEngine
from tests.support.tiny import decode_params, generate, tiny_engine
from tests.worker.test_client import COMMAND, PROMPT, collect, kill


async def test_a_spare_worker_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.worker.client.SPARE_DELAY_S", 0.0)
    monkeypatch.setattr("quicksilver.worker.client.SPARE_RESERVE_BYTES", 0)
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
    monkeypatch.setattr("quicksilver.worker.client.SPARE_DELAY_S", 0.0)
    monkeypatch.setattr("quicksilver.worker.client.SPARE_RESERVE_BYTES", 1 << 60)
    client = await RemoteEngine(COMMAND, has_spare=True).start()
    try:
        await asyncio.sleep(0.2)
        assert client._spare is None
    finally:
        await client.close()
