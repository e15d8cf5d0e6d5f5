"""The fair queue serves tenants in round-robin order. Idle processes that are killed or stopped are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quicksilver.constrain.compile.frames import HEADER
from quicksilver.constrain.compile.process import LimitedProcess
from quicksilver.constrain.compile.process_pool import FairQueue, PoolRefusal, ProcessPool
from quicksilver.errors import Unavailable

# Answers every frame with the same frame.
ECHO = """
import struct, sys
out = sys.stdout.buffer
def write(data):
    out.write(struct.pack(header, len(data)) + data)
    out.flush()
header = sys.argv[1]
write(b"")
while head := sys.stdin.buffer.read(struct.calcsize(header)):
    write(sys.stdin.buffer.read(*struct.unpack(header, head)))
"""


class EchoPool(ProcessPool[LimitedProcess]):
    def _refusal(self, reason: PoolRefusal, detail: str = "") -> Unavailable:
        return Unavailable(detail or reason.name)

    async def echo(self, data: bytes) -> bytes:
        async with self._turn("tenant") as process:
            return await self._retry(process, lambda: process.request(data))


@asynccontextmanager
async def running(program: str = ECHO, heartbeat_s: float = 0.05) -> AsyncIterator[EchoPool]:
    process = LimitedProcess(("-S", "-c", program, HEADER.format), stall_s=0.3)
    pool = EchoPool([process], deadline_s=60, heartbeat_s=heartbeat_s, max_waiting=8, max_waiting_tenant=8)
    try:
        await pool.start()
        yield pool
    finally:
        await pool.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_idle_process_that_is_lost_is_replaced(number: signal.Signals) -> None:
    async with running() as pool:
        (lost,) = pool.pids
        os.kill(lost, number)
        async with asyncio.timeout(60):
            while pool.pids in ([], [lost]) or not pool.is_ready:
                await asyncio.sleep(0.01)
        assert pool.num_replaced
        assert await pool.echo(b"text") == b"text"


async def test_heartbeats_leave_a_process_that_answers() -> None:
    async with running(heartbeat_s=0.0) as pool:
        before = pool.pids
        assert await pool.echo(b"text") == b"text"
        assert (pool.pids, pool.num_replaced) == (before, 0)


async def test_a_pool_whose_processes_cannot_start_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.constrain.compile.process.FIRST_BACKOFF_S", 0.001)
    with pytest.raises(Unavailable, match="did not start"):
        async with running("raise SystemExit(1)"):
            pass


async def test_a_pool_that_is_not_running_is_unavailable() -> None:
    async with running() as pool:
        pass
    assert not pool.is_ready
    with pytest.raises(Unavailable, match="CLOSED"):
        await pool.echo(b"text")


async def take(queue: FairQueue[str], tenant: str, served: list[str]) -> None:
    item = await queue.take(tenant)
    served.append(tenant)
    await asyncio.sleep(0)
    queue.give(item)


async def test_tenants_are_served_in_round_robin_order() -> None:
    queue: FairQueue[str] = FairQueue()
    served: list[str] = []
    tasks = [asyncio.create_task(take(queue, "busy", served)) for _ in range(5)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(take(queue, "other", served)))
    await asyncio.sleep(0)
    queue.give("item")
    await asyncio.gather(*tasks)
    assert served[:2] == ["busy", "other"]
    assert served.count("busy") == 5
    assert queue.num_free == 1


async def test_an_item_given_to_a_cancelled_request_goes_to_the_next_one() -> None:
    queue: FairQueue[str] = FairQueue()
    served: list[str] = []
    gone = asyncio.create_task(take(queue, "a", served))
    stays = asyncio.create_task(take(queue, "b", served))
    await asyncio.sleep(0)
    queue.give("item")
    gone.cancel()
    await asyncio.gather(gone, stays, return_exceptions=True)
    assert served == ["b"]
    assert queue.num_free == 1


async def test_free_items_are_taken_without_waiting() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.give("a")
    queue.give("b")
    assert queue.take_free() == ["a", "b"]
    assert queue.take_free() == []
