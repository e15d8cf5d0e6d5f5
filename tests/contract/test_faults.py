"""Client disconnects and a killed worker, over real sockets and with a real worker process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.worker_server import WorkerServer, worker_server

pytestmark = pytest.mark.contract

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/fim/completions", "/v1/completions")
# SO_LINGER of zero seconds: closing the socket sends a reset.
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[WorkerServer]:
    async with worker_server(tmp_path) as server:
        yield server


def body_of(i: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": "nano", "stream": i % 3 > 0, "seed": i}
    text = f"visitor {i % 7}"
    if i % 4 == 0:
        messages = [{"role": "user", "content": text}]
        return {**fields, "messages": messages, "max_tokens": 300, "n": 1 + i % 3, "diffusing": i % 8 == 0}
    if i % 4 == 1:
        return {**fields, "input": text, "max_output_tokens": 300}
    return {**fields, "prompt": text, "max_tokens": 300, "stop": []}


def request_of(i: int) -> bytes:
    raw = json.dumps(body_of(i)).encode()
    return f"POST {PATHS[i % 4]} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw


async def visit(port: int, i: int, chance: random.Random) -> None:
    """Send a request or a part of it, read for a while, and disconnect with or without a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = request_of(i)
    writer.write(request if i % 10 else request[: chance.randrange(len(request))])
    await writer.drain()
    if i % 10 and i % 3:
        for _ in range(chance.randrange(25)):
            if not await reader.readline():
                break
    else:
        for _ in range(chance.randrange(2000)):
            await asyncio.sleep(0)
    if i % 2:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.close()


async def test_five_hundred_disconnects_give_every_slot_and_page_back(server: WorkerServer) -> None:
    chance = random.Random(11)
    for first in range(0, 500, 50):
        await asyncio.gather(*(visit(server.port, i, chance) for i in range(first, first + 50)))
    stats = await server.rest()
    assert stats.free_pages == server.engine.info.num_pages
    assert stats.aborts > 100
    assert stats.failures == 0
    assert stats.restarts == 0
    async with httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post("/v1/completions", json={"model": "nano", "prompt": "x", "max_tokens": 4})
        assert reply.status_code == 200


async def test_a_killed_worker_is_a_pause_to_open_streams(server: WorkerServer) -> None:
    body = {"model": "nano", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 400}
    body |= {"seed": 3, "temperature": 1.0, "stream_options": {"include_usage": True}, "stop": []}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        undisturbed = (await client.post(PATHS[0], json={**body, "stream": False})).json()
        async with client.stream("POST", PATHS[0], json=body) as stream:
            lines = stream.aiter_lines()
            first = await anext(lines)
            assert server.engine.worker_pid is not None
            os.kill(server.engine.worker_pid, signal.SIGKILL)
            async with asyncio.timeout(30):
                while server.engine.is_ready:
                    await asyncio.sleep(0.01)
            refused = await client.post(PATHS[0], json=body)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/ready")).json()["status"] == "starting"
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in (first, *rest[:-1])]
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        assert text == undisturbed["choices"][0]["message"]["content"]
        usage = chunks[-1]["usage"]
        assert usage["quicksilver"]["migrated"] == 1
        assert usage["completion_tokens"] == undisturbed["usage"]["completion_tokens"]
    stats = await server.rest()
    assert (stats.restarts, stats.free_pages) == (1, server.engine.info.num_pages)
