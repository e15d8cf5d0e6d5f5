"""Both engine clients, on a thread and in a worker process: equal answers, aborts, and workers that die."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from quicksilver.adapters import AdapterHost
from quicksilver.core import Delta, EngineClient, EngineState, Event, FinishReason, Frame, Request, ScoreRequest
from quicksilver.errors import (
    CheckpointRefused,
    ContextTooLong,
    EngineDied,
    EngineUnavailable,
    InvalidRequest,
    RowFailed,
)
from quicksilver.worker.async_engine import AsyncEngine
from quicksilver.worker.client import RemoteEngine, WorkerTimeouts
from quicksilver.worker.process import WorkerProcess
from tests.support.row_adapters import random_adapter, saved
from tests.support.tiny import decode_params, generate, tiny_engine
from tests.worker.fork_server import fork_server

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


async def kill(client: RemoteEngine) -> None:
    """Kills the worker and waits until its end was seen."""
    assert client.worker_pid is not None
    os.kill(client.worker_pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while client.is_ready:
            await asyncio.sleep(0.01)


async def is_replaced(client: RemoteEngine) -> bool:
    """Waits until another worker is ready, and checks that it answers."""
    async with asyncio.timeout(90):
        while not (client.is_ready and client.health().stats.restarts >= 1):
            await asyncio.sleep(0.05)
    tokens, _, _ = await collect(client, Request("after", PROMPT, PARAMS))
    return tokens == generate(tiny_engine(), PROMPT, PARAMS)


async def wait_until_ready(client: RemoteEngine) -> None:
    async with asyncio.timeout(60):
        while not client.is_ready:
            await asyncio.sleep(0.02)


async def test_open_requests_continue_after_each_of_three_kills() -> None:
    """Streams of every decoder and a score: the tokens are those of an undisturbed engine, each delivered once."""
    params = [
        decode_params("ar", max_new_tokens=300),
        decode_params("verify", canvas_len=8, max_new_tokens=300, temperature=0.9, seed=5),
        decode_params("confidence", canvas_len=8, threshold=0.3, max_new_tokens=300),
        decode_params("edit", canvas_len=8, max_new_tokens=300),
    ]
    requests = [Request(str(i), (i, *PROMPT), one) for i, one in enumerate(params)]
    labels = ScoreRequest("s", PROMPT, tuple((i % 97,) * 20 for i in range(40)))
    async with fork_server("--forward-s", "0.005") as forks:
        client = await RemoteEngine(COMMAND, start_process=forks.start).start()
        try:
            streams = [asyncio.create_task(collect(client, request)) for request in requests]
            scoring = asyncio.create_task(client.score(labels))
            for _ in range(3):
                await asyncio.sleep(0.05)
                await kill(client)
                with pytest.raises(EngineUnavailable):
                    await collect(client, Request("too early", PROMPT, PARAMS))
                await wait_until_ready(client)
            results = await asyncio.gather(*streams)
            for request, (tokens, _, last) in zip(requests, results, strict=True):
                assert tokens == generate(tiny_engine(), request.prompt_ids, request.params)
                assert last.usage is not None
                assert last.usage.completion_tokens == 300
            migrated = [last.usage.migrated for _, _, last in results if last.usage is not None]
            assert sum(migrated) > 0
            scores = await scoring
            again = await client.score(replace(labels, id="again"))
            # A scoring request alone has more rows per pass than one beside others, and the products of torch in
            # float32 round differently with the number of rows.
            for one, other in zip(scores.logprobs, again.logprobs, strict=True):
                assert one == pytest.approx(other, abs=1e-5)
            stats = await client.stats()
            assert (stats.restarts, stats.free_pages) == (3, 64)
            assert stats.migrations == sum(migrated) + scores.usage.migrated
            assert not client._pending
        finally:
            await client.close()


async def test_a_request_is_continued_three_times_and_then_fails() -> None:
    async with fork_server("--forward-s", "0.01") as forks:
        client = await RemoteEngine(COMMAND, start_process=forks.start).start()
        try:
            stream = client.stream(Request("open", PROMPT, decode_params("ar", max_new_tokens=480)))
            for num_kills in range(4):
                await read_until_migrated(stream, num_kills)
                await kill(client)
                await wait_until_ready(client)
            with pytest.raises(EngineDied, match="4 times"):
                async for _ in stream:
                    pass
        finally:
            await client.close()


async def read_until_migrated(stream: AsyncGenerator[Event, None], count: int) -> None:
    async for event in stream:
        if isinstance(event, Delta) and event.usage is not None and event.usage.migrated == count:
            return


async def test_a_request_that_ends_two_workers_is_failed_alone() -> None:
    async with fork_server("--die-on", "poison") as forks:
        client = await RemoteEngine(COMMAND, start_process=forks.start).start()
        try:
            others = [Request(str(i), (i, *PROMPT), decode_params("ar", max_new_tokens=200)) for i in range(3)]
            streams = [asyncio.create_task(collect(client, request)) for request in others]
            with pytest.raises(RowFailed, match="2 engine workers ended"):
                await collect(client, Request("poison", PROMPT, decode_params("ar", max_new_tokens=200)))
            for request, (tokens, _, _) in zip(others, await asyncio.gather(*streams), strict=True):
                assert tokens == generate(tiny_engine(), request.prompt_ids, request.params)
            assert (await client.stats()).restarts in (2, 3)
        finally:
            await client.close()


async def test_two_requests_that_end_workers_are_failed_and_the_others_go_on() -> None:
    """Five workers end under the other requests, four of them because of one request that ran alone."""
    async with fork_server("--die-on", "one", "--die-on", "two") as forks:
        client = await RemoteEngine(COMMAND, start_process=forks.start).start()
        try:
            long = decode_params("ar", max_new_tokens=60)
            others = [Request(str(i), (i, *PROMPT), long) for i in range(3)]
            streams = [asyncio.create_task(collect(client, request)) for request in others]
            fatal = [asyncio.create_task(collect(client, Request(name, PROMPT, long))) for name in ("one", "two")]
            for error in await asyncio.gather(*fatal, return_exceptions=True):
                assert isinstance(error, RowFailed)
            for request, (tokens, _, last) in zip(others, await asyncio.gather(*streams), strict=True):
                assert tokens == generate(tiny_engine(), request.prompt_ids, request.params)
                assert last.request_id == request.id
                assert last.usage is not None
                assert last.usage.migrated >= 4
        finally:
            await client.close()


async def test_a_worker_whose_engine_thread_ended_is_replaced() -> None:
    """The supervisor's own connection to the worker does not delay its end."""
    async with fork_server("--raise-on", "fault") as forks, asyncio.timeout(120):
        client = await RemoteEngine(COMMAND, start_process=forks.start).start()
        try:
            with pytest.raises(RowFailed, match="2 engine workers ended"):
                await collect(client, Request("fault", PROMPT, PARAMS))
            await wait_until_ready(client)
            assert await is_replaced(client)
        finally:
            await client.close()


async def test_workers_that_do_not_start_interrupt_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.worker.client.MAX_PAUSE_S", 0.1)
    num_starts = 0
    async with fork_server("--forward-s", "0.01") as forks:

        async def start_process(command: Sequence[str], path: Path) -> WorkerProcess:
            nonlocal num_starts
            num_starts += 1
            if num_starts == 3:
                raise OSError("no memory is left for a process")
            if 2 <= num_starts <= 5:
                return await WorkerProcess.start([sys.executable, "-c", "raise SystemExit(3)"], path)
            return await forks.start(command, path)

        client = await RemoteEngine(COMMAND, start_process=start_process).start()
        try:
            request = Request("open", PROMPT, decode_params("ar", max_new_tokens=100))
            stream = asyncio.create_task(collect(client, request))
            await wait_until_running(client)
            await kill(client)
            tokens, _, last = await stream
            assert tokens == generate(tiny_engine(), PROMPT, request.params)
            assert last.usage is not None
            assert last.usage.migrated == 1
            assert num_starts == 6
            left = {path.name for path in Path(client._folder.name).iterdir()}
            assert left == {"engine-6.sock", "engine-6.step"}, "the files of the first worker are removed"
        finally:
            await client.close()


async def wait_until_running(client: RemoteEngine) -> None:
    async with asyncio.timeout(30):
        while not (await client.stats()).running:
            await asyncio.sleep(0)


async def test_a_request_that_waits_too_long_for_a_new_worker_fails() -> None:
    client = await RemoteEngine([*COMMAND, "--load-s", "2"], WorkerTimeouts(resume_s=0.3)).start()
    try:
        stream = client.stream(Request("open", PROMPT, decode_params("ar", max_new_tokens=400)))
        await anext(stream)
        await kill(client)
        with pytest.raises(EngineDied, match="retry"):
            async for _ in stream:
                pass
        await wait_until_ready(client)
        assert not client._pending
    finally:
        await client.close()


async def test_a_request_that_is_closed_during_the_pause_is_not_continued() -> None:
    async with fork_server() as forks:
        client = await RemoteEngine(COMMAND, start_process=forks.start).start()
        try:
            stream = client.stream(Request("open", PROMPT, decode_params("ar", max_new_tokens=400)))
            await anext(stream)
            await kill(client)
            await stream.aclose()
            await wait_until_ready(client)
            stats = await client.stats()
            assert (stats.requests, stats.migrations) == (0, 0)
        finally:
            await client.close()


async def test_heartbeats_carry_figures_that_need_no_waiting(client: EngineClient) -> None:
    await collect(client, Request("a", PROMPT, PARAMS))
    async with asyncio.timeout(20):
        while (health := client.health()).stats.generated_tokens < 24:  # an earlier heartbeat may show a part
            await asyncio.sleep(0.05)
    assert health.state is EngineState.READY
    assert (health.stats.requests, health.stats.generated_tokens) == (1, 24)


async def test_a_worker_that_cannot_start_raises_at_once() -> None:
    client = RemoteEngine([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(EngineUnavailable, match="did not start"):
        await client.start()
    await client.close()


async def test_adapters_are_loaded_on_demand_listed_and_unloaded(
    client: AsyncEngine | RemoteEngine, tmp_path: Path
) -> None:
    refs = [saved(tmp_path, random_adapter(seed), str(seed)) for seed in (1, 2)]
    assert client.info.supports_adapters
    assert isinstance(client, AdapterHost)
    assert await client.list_adapters() == ()
    loaded = await client.load_adapter(refs[0])
    assert (loaded.id, loaded.path, loaded.rank, loaded.is_in_use) == (refs[0].id, refs[0].path, 4, False)
    streams = [collect(client, Request(str(i), PROMPT, PARAMS, adapter=ref)) for i, ref in enumerate(refs)]
    for ref, (tokens, _, _) in zip(refs, await asyncio.gather(*streams), strict=True):
        assert tokens == generate(tiny_engine(), PROMPT, PARAMS, adapter=ref)
    assert {info.id for info in await client.list_adapters()} == {ref.id for ref in refs}
    assert await client.unload_adapter(refs[0].id)
    assert not await client.unload_adapter(refs[0].id)
    score = ScoreRequest("s", PROMPT, ((1, 2),), adapter=refs[0])
    assert await client.score(score) != await client.score(replace(score, id="t", adapter=refs[1]))
    with pytest.raises(CheckpointRefused, match="missing"):
        await client.load_adapter(replace(refs[0], id="0" * 64, path=str(tmp_path / "none")))


async def test_a_request_with_an_adapter_is_continued_in_the_next_worker(tmp_path: Path) -> None:
    ref, params = saved(tmp_path, random_adapter(1)), decode_params("ar", max_new_tokens=200)
    client = await RemoteEngine(COMMAND).start()
    try:
        tokens, was_killed = list[int](), False
        async for event in client.stream(Request("a", PROMPT, params, adapter=ref)):
            if isinstance(event, Delta):
                tokens += event.token_ids
            if not was_killed and client.worker_pid is not None:
                os.kill(client.worker_pid, signal.SIGKILL)
                was_killed = True
        assert tokens == generate(tiny_engine(), PROMPT, params, adapter=ref)
    finally:
        await client.close()
