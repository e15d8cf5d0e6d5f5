"""One compile process: verdicts about a source, losses, heartbeat, environment."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
import uvloop

from quicksilver.constrain.compile import process as module
from quicksilver.constrain.compile.process import CompileProcess, LimitedProcess, ProcessLost, minimal_environment
from quicksilver.constrain.source import FormatKind, ResponseFormat, encode

SIMPLE = encode(ResponseFormat(FormatKind.JSON_OBJECT))
SLOW = encode(ResponseFormat(FormatKind.JSON_SCHEMA, {"anyOf": [{"pattern": f"^{i}.*{i}$"} for i in range(3000)]}))


@pytest.fixture
async def process() -> AsyncIterator[CompileProcess]:
    process = CompileProcess(limit_s=0.02, memory_bytes=2**29, stall_s=0.5)
    await process.start()
    yield process
    await process.kill()


async def test_a_ready_process_compiles_and_answers_heartbeats(process: CompileProcess) -> None:
    assert process.is_ready
    assert process.is_idle
    assert (await process.compile(SIMPLE)).grammar
    assert await process.answers()
    assert process.is_idle


async def test_too_much_processor_time_is_the_verdict_of_the_source(process: CompileProcess) -> None:
    assert "more than 0.02 s" in (await process.compile(SLOW)).error
    assert not process.is_ready


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
async def test_a_crash_is_the_verdict_of_the_source(process: CompileProcess, number: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)
    assert "memory" in (await process.compile(SIMPLE)).error


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
async def test_a_signal_from_outside_is_a_loss(process: CompileProcess, number: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)
    with pytest.raises(ProcessLost):
        await process.compile(SIMPLE)
    assert not process.is_idle
    await process.restart()
    assert (await process.compile(SIMPLE)).grammar


async def test_a_stopped_process_misses_its_heartbeat(process: CompileProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert not await process.answers()
    assert not process.is_ready


async def test_a_process_that_waits_for_a_processor_is_not_lost(
    process: CompileProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine: more than the limit passes, in which the process is runnable and is given no time."""
    pid, num_looks = process.pid, 0
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)

    def look(_: CompileProcess) -> tuple[int, bool]:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 5:
            os.kill(pid, signal.SIGCONT)
        return 7, True

    monkeypatch.setattr(CompileProcess, "_activity", look)
    monkeypatch.setattr(process, "_stall_s", 0.02)
    assert await process.answers()


def test_a_reply_that_came_while_this_process_was_busy_is_read() -> None:
    """On uvloop, as in the server: it runs timers before it reads."""

    async def scenario() -> None:
        process = CompileProcess(limit_s=2.0, memory_bytes=2**29, stall_s=0.05)
        await process.start()
        try:
            for _ in range(8):
                answering = asyncio.create_task(process.answers())
                for _ in range(4):
                    await asyncio.sleep(0)
                time.sleep(0.15)
                assert await answering
        finally:
            await process.kill()

    uvloop.run(scenario())


@pytest.mark.parametrize("setup", [b"", b"x" * 2**20])
async def test_a_process_that_is_stopped_while_it_starts_is_lost(setup: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that does not read its setup, which is larger than a pipe."""
    monkeypatch.setattr(module, "START_STALL_S", 0.2)
    monkeypatch.setattr(module, "START_LIMIT_S", 3600)
    process = LimitedProcess(("-S", "-c", f"import os; os.kill(os.getpid(), {signal.SIGSTOP:d})"), 3600, setup)
    with pytest.raises(ProcessLost, match="no progress"):
        await asyncio.wait_for(process.start(), 60)
    await process.kill()


async def test_a_stopped_process_that_does_not_read_its_request_is_lost(process: CompileProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(ProcessLost, match="no progress"):
        await asyncio.wait_for(process.request(b"x" * 2**20), 60)


async def test_restart_tries_again_until_a_start_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    process, starts = CompileProcess(2.0, 2**29, 1.0), 0

    async def start(_: CompileProcess) -> None:
        nonlocal starts
        starts += 1
        if starts < 4:
            raise ProcessLost("no memory")

    monkeypatch.setattr(CompileProcess, "start", start)
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.001)
    await process.restart()
    assert starts == 4
    starts = 0
    with pytest.raises(ProcessLost):
        await process.restart(max_attempts=3)


def test_processes_inherit_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSILVER_ADMIN_KEY", "secret")
    assert "secret" not in minimal_environment().values()
    assert minimal_environment()["PATH"] == os.environ["PATH"]
