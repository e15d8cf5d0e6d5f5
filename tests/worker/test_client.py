"""Both engine clients, on a thread and in a worker process: equal answers, aborts, and workers that die or hang."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator

import pytest

from quicksilver.core import Delta, EngineClient, EngineState, FinishReason, Frame, Request, ScoreRequest
from quicksilver.errors import ContextTooLong, EngineDied, EngineUnavailable, InvalidRequest
from quicksilver.worker.async_engine import AsyncEngine
from quicksilver.worker.client import RemoteEngine, WorkerTimeouts
from tests.support.tiny import decode_params, generate, tiny_engine

PROMPT = tuple(range(1, 30))
PARAMS = decode_params("verify", canvas_len=8, max_new_tokens=24)
COMMAND = [sys.executable, "-m", "tests.worker.worker_program"]


@pytest.fixture(params=["thread", "worker"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[EngineClient]:
    engine = AsyncEngine(tiny_engine()) if request.param == "thread" else await RemoteEngine(COMMAND).start()
    yield engine
    await engine.close()


async def collect(client: EngineClient, request: Request) -> tuple[list[int], list[Frame], Delta]:
    tokens, frames, last = list[int](), list[Frame](), Delta("")
    async for event in client.stream(request):
        if isinstance(event, Frame):
            frames.append(event)
        else:
            tokens += event.token_ids
            last = event
    return tokens, frames, last


async def test_a_client_streams_what_the_engine_makes(client: EngineClient) -> None:
    tokens, frames, last = await collect(client, Request("a", PROMPT, PARAMS, wants_frames=True))
    assert tokens == generate(tiny_engine(), PROMPT, PARAMS)
    assert frames
    assert last.finish is FinishReason.LENGTH
    assert last.usage is not None
    assert last.usage.completion_tokens == 24
    assert client.info.model == "tiny"


async def test_many_streams_at_once_do_not_mix(client: EngineClient) -> None:
    requests = [Request(str(i), (i, *PROMPT), PARAMS) for i in range(8)]
    results = await asyncio.gather(*(collect(client, request) for request in requests))
    for request, (tokens, _, _) in zip(requests, results, strict=True):
        assert tokens == generate(tiny_engine(), request.prompt_ids, PARAMS)


async def test_refusals_arrive_as_the_error_that_was_raised(client: EngineClient) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await collect(client, Request("bad", PROMPT, decode_params("verify", top_p=7.0)))
    assert (refused.value.param, refused.value.status) == ("top_p", 400)
    with pytest.raises(ContextTooLong):
        await collect(client, Request("long", PROMPT, decode_params("verify", max_new_tokens=9999)))


async def test_closing_a_stream_aborts_the_request(client: EngineClient) -> None:
    stream = client.stream(Request("cut", PROMPT, decode_params("ar", max_new_tokens=400)))
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(10):
        while (stats := await client.stats()).running:
            await asyncio.sleep(0.01)
    assert stats.aborts == 1
    assert stats.free_pages == 64


async def test_scores_cross_the_client(client: EngineClient) -> None:
    scores = await client.score(ScoreRequest("s", PROMPT, ((5, 6), (7,))))
    assert [len(part) for part in scores.logprobs] == [2, 1]
    with pytest.raises(InvalidRequest):
        await client.score(ScoreRequest("t", PROMPT, ()))


async def test_a_cancelled_score_frees_everything(client: EngineClient) -> None:
    request = ScoreRequest("s", PROMPT, tuple((i % 97,) * 20 for i in range(45)))
    asking = asyncio.create_task(client.score(request))
    async with asyncio.timeout(20):
        while not (await client.stats()).running:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        while (stats := await client.stats()).running or stats.waiting:
            await asyncio.sleep(0.01)
    assert (stats.aborts, stats.free_pages) == (1, 64)
    assert not getattr(client, "_pending", None)
    assert not getattr(client, "_receivers", None)


async def test_a_score_that_can_never_fit_is_refused_and_blocks_no_other(client: EngineClient) -> None:
    with pytest.raises(InvalidRequest, match="at most") as refused:
        await client.score(ScoreRequest("s", PROMPT, tuple((i % 97,) * 60 for i in range(60))))
    assert refused.value.status == 400
    assert len((await collect(client, Request("chat", PROMPT, PARAMS)))[0]) == 24


async def test_a_killed_worker_fails_its_streams_and_is_replaced() -> None:
    client = await RemoteEngine(COMMAND).start()
    try:
        stream = client.stream(Request("open", PROMPT, decode_params("ar", max_new_tokens=400)))
        await anext(stream)
        assert client.worker_pid is not None
        os.kill(client.worker_pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            async for _ in stream:
                pass
        with pytest.raises(EngineUnavailable):
            await collect(client, Request("too early", PROMPT, PARAMS))
        async with asyncio.timeout(60):
            while not client.is_ready:
                await asyncio.sleep(0.05)
        tokens, _, _ = await collect(client, Request("after", PROMPT, PARAMS))
        assert tokens == generate(tiny_engine(), PROMPT, PARAMS)
        assert (await client.stats()).restarts == 1
    finally:
        await client.close()


async def is_replaced(client: RemoteEngine) -> bool:
    """Waits until another worker is ready, and checks that it answers."""
    async with asyncio.timeout(90):
        while not (client.is_ready and client.health().stats.restarts >= 1):
            await asyncio.sleep(0.05)
    tokens, _, _ = await collect(client, Request("after", PROMPT, PARAMS))
    return tokens == generate(tiny_engine(), PROMPT, PARAMS)


async def test_a_stopped_worker_is_reported_killed_and_replaced() -> None:
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
        with pytest.raises(EngineDied):
            async for _ in stream:
                pass
        with pytest.raises(EngineDied):
            await scoring
        assert client.health().state is EngineState.STARTING
        assert await is_replaced(client)
    finally:
        await client.close()
    assert client.health().state is EngineState.CLOSED


async def test_a_worker_whose_step_does_not_end_is_killed_and_replaced() -> None:
    client = await RemoteEngine([*COMMAND, "--hang-on", "hang"], WorkerTimeouts(step_s=5.0)).start()
    try:
        with pytest.raises(EngineDied):
            await collect(client, Request("hang", PROMPT, PARAMS))
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


async def test_heartbeats_carry_figures_that_need_no_waiting(client: EngineClient) -> None:
    await collect(client, Request("a", PROMPT, PARAMS))
    async with asyncio.timeout(20):
        while (health := client.health()).stats.requests == 0:
            await asyncio.sleep(0.05)
    assert health.state is EngineState.READY
    assert health.stats.generated_tokens == 24


async def test_a_worker_that_cannot_start_raises_at_once() -> None:
    client = RemoteEngine([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(EngineUnavailable, match="did not start"):
        await client.start()
    await client.close()
