"""The compile pool survives processes that are stopped, killed, or killed while they start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import uvloop

from quicksilver.constrain.compile.pool import CompilePool, PoolConfig
from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.errors import CompilerUnavailable

HANG_GUARD_S = 60.0
# CPU time is about a second: enough for a process to be caught in the middle of it.
SLOW = ResponseFormat(
    FormatKind.JSON_SCHEMA, {"anyOf": [{"type": "string", "pattern": f"^{i:05d}.*{i}$"} for i in range(3000)]}
)


def schema(name: str) -> ResponseFormat:
    return ResponseFormat(FormatKind.JSON_SCHEMA, {"type": "object", "properties": {name: {"type": "string"}}})


@pytest.fixture
async def pool() -> AsyncIterator[CompilePool]:
    pool = CompilePool(PoolConfig(stall_s=0.5, heartbeat_s=0.2, deadline_s=HANG_GUARD_S))
    await pool.start()
    yield pool
    await pool.stop()


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


async def replaced(pool: CompilePool, old: list[int]) -> None:
    """Waits until every process in `old` has a successor that is ready."""
    async with asyncio.timeout(HANG_GUARD_S):
        while set(pool.pids) & set(old) or pool.num_ready < pool.config.num_processes:
            await asyncio.sleep(0.01)


async def test_a_schema_compiles_although_both_processes_are_stopped(pool: CompilePool) -> None:
    send(pool.pids, signal.SIGSTOP)
    async with asyncio.timeout(HANG_GUARD_S):
        assert (await pool.compile(schema("a"), "tenant")).grammar
        assert (await pool.compile(schema("a"), "tenant")).grammar


async def test_stopped_idle_processes_are_replaced_without_a_request(pool: CompilePool) -> None:
    old = pool.pids
    send(old, signal.SIGSTOP)
    await replaced(pool, old)
    assert pool.is_ready


async def test_a_stall_is_not_cached_as_a_refusal() -> None:
    pool = CompilePool(PoolConfig(num_processes=1, stall_s=HANG_GUARD_S, heartbeat_s=HANG_GUARD_S, deadline_s=0.5))
    await pool.start()
    send(pool.pids, signal.SIGSTOP)
    with pytest.raises(CompilerUnavailable) as caught:
        await pool.compile(schema("a"), "tenant")
    assert caught.value.code == "compiler_unavailable"
    assert caught.value.retry_after_s > 0
    async with asyncio.timeout(HANG_GUARD_S):
        while True:
            try:
                assert (await pool.compile(schema("a"), "tenant")).grammar
                break
            except CompilerUnavailable:
                await asyncio.sleep(0.05)
    await pool.stop()


async def test_killed_idle_processes_cost_no_request(pool: CompilePool) -> None:
    send(pool.pids, signal.SIGKILL)
    async with asyncio.timeout(HANG_GUARD_S):
        specs = await asyncio.gather(*(pool.compile(schema(f"p{i}"), f"tenant {i % 3}") for i in range(6)))
    assert all(spec.grammar for spec in specs)


async def test_a_process_killed_at_work_is_replaced_and_the_schema_tried_again(pool: CompilePool) -> None:
    busy = asyncio.create_task(pool.compile(SLOW, "tenant"))
    while not (old := [process.pid for process in pool._processes if process.pid and not process.is_idle]):
        await asyncio.sleep(0.01)
    send(old, signal.SIGKILL)
    async with asyncio.timeout(HANG_GUARD_S):
        (outcome,) = await asyncio.gather(busy, return_exceptions=True)
    assert "memory" not in str(outcome)
    assert not isinstance(outcome, CompilerUnavailable)
    await replaced(pool, old)


async def test_processes_killed_while_they_start_are_started_again(pool: CompilePool) -> None:
    """The report's case: two kills of processes that have not reported ready left the pool empty for good."""
    for _ in range(2):
        send(pool.pids, signal.SIGKILL)
        async with asyncio.timeout(HANG_GUARD_S):
            while pool.num_ready or not pool.pids:
                await asyncio.sleep(0)
    async with asyncio.timeout(HANG_GUARD_S):
        assert (await pool.compile(schema("a"), "tenant")).grammar
        while pool.num_ready < pool.config.num_processes:
            await asyncio.sleep(0.01)


async def test_waiting_for_a_process_has_a_deadline() -> None:
    pool = CompilePool(PoolConfig(num_processes=1, deadline_s=0.3, stall_s=HANG_GUARD_S, heartbeat_s=HANG_GUARD_S))
    await pool.start()
    send(pool.pids, signal.SIGSTOP)
    async with asyncio.timeout(HANG_GUARD_S):
        outcomes = await asyncio.gather(
            *(pool.compile(schema(f"p{i}"), "tenant") for i in range(3)), return_exceptions=True
        )
    assert [type(outcome).__name__ for outcome in outcomes] == ["CompilerUnavailable"] * 3
    await pool.stop()


async def test_readiness_is_false_while_no_process_answers(pool: CompilePool) -> None:
    assert pool.is_ready
    send(pool.pids, signal.SIGKILL)
    async with asyncio.timeout(HANG_GUARD_S):
        while pool.is_ready:
            await asyncio.sleep(0)
        while not pool.is_ready:
            await asyncio.sleep(0.01)
    await pool.stop()
    assert not pool.is_ready


def test_killed_and_stopped_processes_are_replaced_on_uvloop() -> None:
    """The server runs on uvloop, which reports a closed pipe as RuntimeError."""

    async def scenario() -> None:
        pool = CompilePool(PoolConfig(stall_s=0.5, heartbeat_s=0.2, deadline_s=HANG_GUARD_S))
        await pool.start()
        for number in (signal.SIGKILL, signal.SIGSTOP):
            send(pool.pids, number)
            specs = await asyncio.gather(*(pool.compile(schema(f"{number}{i}"), f"tenant {i}") for i in range(4)))
            assert all(spec.grammar for spec in specs)
            old = pool.pids
            send(old, number)
            await replaced(pool, old)
        await pool.stop()

    uvloop.run(scenario())
