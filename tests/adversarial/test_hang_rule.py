"""When an exchange of the attacker counts as a hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from tests.adversarial import attacks
from tests.adversarial.attacks import MAX_LIMITS, Exchange, Target, exchange
from tests.adversarial.engine_work import EngineWork

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
COMMENT = b"HTTP/1.1 200 OK\r\n\r\n: keep-alive\n\n"


def metrics(rows: int) -> str:
    return f'# TYPE quicksilver_engine_rows counter\nquicksilver_engine_rows_total{{model="nano"}} {rows:.1f}\n'


@asynccontextmanager
async def listener(first: bytes, answer: asyncio.Event) -> AsyncIterator[Target]:
    """A server that sends `first` at once and its reply after `answer` is set."""

    async def reply(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        await answer.wait()
        writer.write(REPLY)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    try:
        yield Target(server.sockets[0].getsockname()[1], {})
    finally:
        answer.set()
        server.close()


def test_rows_in_the_metrics_are_work() -> None:
    work = EngineWork()
    work.note(metrics(64), 20.0)
    assert work.changed_at == 20.0
    work.note(metrics(64), 30.0)
    assert work.changed_at == 20.0
    work.note(metrics(128), 40.0)
    assert work.changed_at == 40.0


def test_an_exchange_hangs_once_the_engine_has_been_idle_for_the_limit() -> None:
    target = Target(0, {}, hang_s=60)
    target.work.changed_at = 100.0
    assert not target.is_hung(50.0, 160.0)
    assert target.is_hung(50.0, 161.0)
    assert not target.is_hung(150.0, 161.0), "the exchange itself is younger than the limit"


async def test_a_server_that_never_answers_is_a_hang() -> None:
    for first in (b"", COMMENT):
        async with listener(first, asyncio.Event()) as target:
            found = await exchange(replace(target, hang_s=0.2), b"x")
        assert found.hung


async def test_an_exchange_may_wait_while_the_engine_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "MAX_LIMITS", 10_000)
    answer, work = asyncio.Event(), EngineWork()
    work.changed_at = time.monotonic() + 3600
    async with listener(b"", answer) as target:
        waiting = asyncio.create_task(exchange(replace(target, hang_s=0.1, work=work), b"x"))
        await asyncio.wait({waiting}, timeout=0.5)
        assert not waiting.done()
        answer.set()
        assert await waiting == Exchange(("200",))


async def test_an_engine_that_works_for_ever_is_a_hang() -> None:
    work = EngineWork()
    work.changed_at = time.monotonic() + 3600
    async with listener(COMMENT, asyncio.Event()) as target:
        found = await exchange(replace(target, hang_s=0.5 / MAX_LIMITS, work=work), b"x")
    assert found.hung


async def test_work_is_read_from_the_metrics() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.url.path, request.headers["authorization"]) == ("/metrics", "Bearer key")
        return httpx.Response(200, text=metrics(64))

    work = EngineWork()
    work.changed_at = 0.0
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://localhost") as client:
        following = asyncio.create_task(work.follow(client, {"authorization": "Bearer key"}))
        async with asyncio.timeout(60):
            while not work.changed_at:
                await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
