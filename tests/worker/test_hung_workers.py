"""Workers that stop, hang in a step or load for long, and a busy API process that must not be mistaken for that."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from quicksilver.core import Delta, EngineState, FinishReason, Request, ScoreRequest
from quicksilver.errors import EngineUnavailable, RowFailed
from quicksilver.worker.client import RemoteEngine, WorkerTimeouts
from quicksilver.worker.process import WorkerProcess
from quicksilver.worker.step_record import read_step, record_path
from tests.support.tiny import decode_params
from tests.worker.fork_server import fork_server
from tests.worker.test_client import COMMAND, PARAMS, PROMPT, collect, is_replaced, wait_until_ready


async def test_a_stopped_worker_is_replaced_before_the_limit_of_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice, in a step with one request, which would be to blame for two workers that ended by themselves."""
    monkeypatch.setattr("tests.worker.fork_server.STOP_S", 0.1)
    timeouts = WorkerTimeouts(unresponsive_s=0.6, silent_s=3600)
    async with fork_server("--hang-on", "hang") as forks:
        client = await RemoteEngine(COMMAND, timeouts, start_process=forks.start).start()
        try:
            open_request = asyncio.create_task(collect(client, Request("hang", PROMPT, PARAMS)))
            for num_stopped in (1, 2):
                async with asyncio.timeout(90):
                    while not read_step(record_path(client.socket_path)):
                        await asyncio.sleep(0.02)
                    assert client.worker_pid is not None
                    os.kill(client.worker_pid, signal.SIGSTOP)
                    while client.health().stats.restarts < num_stopped or not client.is_ready:
                        await asyncio.sleep(0.02)
            assert not open_request.done()
            open_request.cancel()
        finally:
            await client.close()


async def test_a_silent_worker_is_reported_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerProcess, "is_stopped", False)
    client = await RemoteEngine(COMMAND, WorkerTimeouts(stats_s=0.5, unresponsive_s=0.6, silent_s=4.0)).start()
    try:
        stream = client.stream(Request("open", PROMPT, decode_params("ar", max_new_tokens=400)))
        await anext(stream)
        scoring = asyncio.create_task(client.score(ScoreRequest("s", PROMPT, ((5, 6),) * 100)))
        await asyncio.sleep(0)
        assert client.worker_pid is not None
        os.kill(client.worker_pid, signal.SIGSTOP)
        with pytest.raises(EngineUnavailable, match="does not answer") as refused:
            await client.stats()
        assert refused.value.retry_after_s > 0
        async with asyncio.timeout(60):
            while client.health().state is EngineState.READY:
                await asyncio.sleep(0.02)
        assert client.health().state is EngineState.UNRESPONSIVE
        async with asyncio.timeout(60):
            while client.health().state is EngineState.UNRESPONSIVE:
                await asyncio.sleep(0.02)
        assert client.health().state is EngineState.STARTING
        assert await is_replaced(client)
        rest = [event async for event in stream]
        assert isinstance(rest[-1], Delta)
        assert rest[-1].finish is FinishReason.LENGTH
        assert len((await scoring).logprobs) == 100
    finally:
        await client.close()
    assert client.health().state is EngineState.CLOSED


async def test_a_worker_whose_step_does_not_end_is_killed_and_replaced() -> None:
    client = await RemoteEngine([*COMMAND, "--hang-on", "hang"], WorkerTimeouts(step_s=3.0)).start()
    try:
        with pytest.raises(RowFailed):
            await collect(client, Request("hang", PROMPT, PARAMS))
        await wait_until_ready(client)
        assert await is_replaced(client)
    finally:
        await client.close()


async def test_a_worker_that_is_stopped_while_it_loads_is_replaced() -> None:
    client = await RemoteEngine([*COMMAND, "--load-s", "2"], WorkerTimeouts(silent_s=3.0)).start()
    try:
        first = client.worker_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            while client.worker_pid == first:
                await asyncio.sleep(0.02)
        assert client.worker_pid is not None
        os.kill(client.worker_pid, signal.SIGSTOP)
        assert await is_replaced(client)
        assert client.health().stats.restarts >= 2
    finally:
        await client.close()


async def test_a_worker_that_loads_for_long_is_not_taken_for_a_hung_one() -> None:
    client = await RemoteEngine([*COMMAND, "--load-s", "3"], WorkerTimeouts(silent_s=1.5, unresponsive_s=1.0)).start()
    try:
        assert client.health().stats.restarts == 0
    finally:
        await client.close()


async def test_a_busy_api_process_is_not_taken_for_a_hung_worker() -> None:
    """While this process computes, heartbeats wait in the socket."""
    client = await RemoteEngine(COMMAND, WorkerTimeouts(silent_s=3.0)).start()
    try:
        await collect(client, Request("before", PROMPT, PARAMS))
        time.sleep(4.5)
        await asyncio.sleep(0.2)
        assert len((await collect(client, Request("after", PROMPT, PARAMS)))[0]) == 24
        assert client.health().stats.restarts == 0
    finally:
        await client.close()
