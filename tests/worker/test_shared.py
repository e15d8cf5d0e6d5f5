"""An engine that another process owns: control socket, loading, open requests, replaced workers.

The owner runs in this process too: a pool whose engines listen on real sockets with scripted answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quicksilver.core import Delta, EngineState, Request, ScoreRequest
from quicksilver.errors import EngineUnavailable
from quicksilver.worker import server
from quicksilver.worker.control import ApiState, ControlServer
from quicksilver.worker.pool import EnginePool, ModelPoolConfig, PooledModel
from quicksilver.worker.program import WorkerConfig
from quicksilver.worker.shared import ControlClient, SharedEngine
from tests.support.fake_engine import spoken
from tests.support.scripted_worker import ScriptedEngine
from tests.worker.test_pool import FakeRemote, until


class ListeningRemote(FakeRemote):
    """A worker of the pool that listens on a socket, as the real ones do."""

    def __init__(self, worker: WorkerConfig, gate: asyncio.Event, folder: Path, number: int) -> None:
        super().__init__(worker, gate, None)
        self.socket_path = folder / f"{worker.model}-{number}.sock"
        self.served = ScriptedEngine(lambda request: spoken(request, range(20), 5), info=self.info)
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> FakeRemote:
        await super().start()
        await self.listen()
        return self

    async def listen(self) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            await server.Connection(self.served, writer).run(reader)  # type: ignore[arg-type]

        self._server = await asyncio.start_unix_server(accept, path=str(self.socket_path))

    async def end(self) -> None:
        """As if the worker had died."""
        self._server.close()
        for writer in self._writers:
            writer.close()
        self.socket_path.unlink(missing_ok=True)

    async def close(self) -> None:
        await super().close()
        await self.end()


class Owner:
    """The process that owns the workers."""

    def __init__(self, folder: Path, config: ModelPoolConfig) -> None:
        self.remotes: list[ListeningRemote] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.reports: list[tuple[int, ApiState]] = []
        self._folder = folder
        models = [PooledModel(name, WorkerConfig(name)) for name in ("a", "b")]
        self.pool = EnginePool(models, config, self._start)  # type: ignore[arg-type]
        self.control = ControlServer(self.pool, folder / "c.sock", lambda pid, state: self.reports.append((pid, state)))

    def _start(self, worker: WorkerConfig) -> ListeningRemote:
        self.remotes.append(ListeningRemote(worker, self.gate, self._folder, len(self.remotes)))
        return self.remotes[-1]


@asynccontextmanager
async def shared(tmp_path: Path, **settings: float) -> AsyncIterator[tuple[Owner, dict[str, SharedEngine]]]:
    owner = Owner(tmp_path, ModelPoolConfig(**settings))  # type: ignore[arg-type]
    await owner.pool.start()
    await owner.control.start()
    client = await ControlClient(owner.control.path).start()
    engines = {name: await SharedEngine(name, client).start() for name in owner.pool.engines}
    client.report(ApiState.SERVING)
    try:
        yield owner, engines
    finally:
        for engine in engines.values():
            await engine.close()
        await client.close()
        await owner.control.close()
        await owner.pool.close()


async def answer(engine: SharedEngine, name: str = "r") -> list[int]:
    events = [event async for event in engine.stream(Request(name, (5,)))]
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


async def test_requests_go_to_the_worker_of_the_owner(tmp_path: Path) -> None:
    async with shared(tmp_path) as (owner, engines):
        answers = await asyncio.gather(*(answer(engines[name], f"{name}{i}") for name in engines for i in range(5)))
        assert answers == [list(range(20))] * 10
        assert engines["b"].info.model == "b"
        assert len((await engines["a"].score(ScoreRequest("s", (5,), ((1,), (2, 3))))).logprobs) == 2
        assert (await engines["a"].stats()).requests == 5
        assert engines["a"].health().state is EngineState.READY
        assert [state for _, state in owner.reports] == [ApiState.SERVING]


async def test_a_request_loads_an_unloaded_model(tmp_path: Path) -> None:
    async with shared(tmp_path) as (owner, engines):
        await answer(engines["b"])
        await owner.pool.engines["b"].unload()
        await until(lambda: engines["b"].health().state is EngineState.UNLOADED)
        assert not engines["b"].is_loaded
        assert engines["b"].info.model == "b"
        assert await answer(engines["b"]) == list(range(20))
        assert [remote.worker.model for remote in owner.remotes] == ["a", "b", "b"]


async def test_the_refusal_of_a_load_reaches_the_request(tmp_path: Path) -> None:
    async with shared(tmp_path, load_wait_s=0.05) as (owner, engines):
        await answer(engines["b"])
        await owner.pool.engines["b"].unload()
        await until(lambda: not engines["b"].is_loaded)
        owner.gate.clear()
        with pytest.raises(EngineUnavailable, match="b is loading; retry shortly") as refused:
            await engines["b"].load()
        assert refused.value.retry_after_s >= 1
        assert engines["b"].health().state is EngineState.STARTING
        owner.gate.set()
        await until(lambda: engines["b"].is_loaded)


async def test_a_model_with_open_requests_elsewhere_is_in_use(tmp_path: Path) -> None:
    async with shared(tmp_path) as (owner, engines):
        await answer(engines["a"])
        events = engines["a"].stream(Request("open", (5,)))
        await anext(events)
        await until(lambda: owner.pool.engines["a"].num_open_elsewhere == 1)
        assert not owner.pool.engines["a"].can_unload
        await events.aclose()
        await until(lambda: owner.pool.engines["a"].can_unload)


async def test_a_process_that_ends_has_no_open_requests(tmp_path: Path) -> None:
    async with shared(tmp_path) as (owner, _):
        client = await ControlClient(owner.control.path).start()
        with client.counted("a"):
            await until(lambda: owner.pool.engines["a"].num_open_elsewhere == 1)
            await client.close()
        await until(lambda: owner.pool.engines["a"].num_open_elsewhere == 0)
        assert owner.pool.engines["a"].can_unload


async def test_a_replaced_worker_is_found_again_and_an_open_request_continues(tmp_path: Path) -> None:
    async with shared(tmp_path) as (owner, engines):
        go = asyncio.Event()
        remote = owner.remotes[0]
        remote.served.script = lambda request: [*spoken(request, range(20), 5)[:2], go.wait]
        reading = asyncio.create_task(answer(engines["a"]))
        await until(lambda: len(remote.served.seen) == 1)
        await asyncio.sleep(0.05)
        await remote.end()
        await until(lambda: not engines["a"].is_ready)
        remote.socket_path = tmp_path / "next.sock"
        remote.served.script = lambda request: spoken(request, range(10, 20), 5)
        await remote.listen()
        assert await reading == list(range(20))
        resumed = remote.served.seen[-1].resume
        assert resumed is not None
        assert list(resumed.token_ids) == list(range(10))


async def test_a_model_that_was_unloaded_under_a_request_is_loaded_again(tmp_path: Path) -> None:
    """The owner unloads a model before it has learned that another process has a request for it."""
    async with shared(tmp_path) as (owner, engines):
        go = asyncio.Event()
        await until(lambda: engines["a"].is_ready)
        owner.remotes[0].served.script = lambda request: [*spoken(request, range(20), 5)[:2], go.wait]
        reading = asyncio.create_task(answer(engines["a"]))
        await until(lambda: len(owner.remotes[0].served.seen) == 1)
        await owner.pool.engines["a"].unload()
        assert len(await asyncio.wait_for(reading, 30)) >= 20
        assert [remote.worker.model for remote in owner.remotes].count("a") == 2
        resumed = owner.remotes[-1].served.seen[-1].resume
        assert resumed is not None


async def test_a_load_is_refused_after_the_end_of_the_owner(tmp_path: Path) -> None:
    async with shared(tmp_path) as (owner, _):
        client = await ControlClient(owner.control.path).start()
        await owner.control.close()
        await asyncio.wait_for(client.ended.wait(), 10)
        with pytest.raises(EngineUnavailable, match="shutting down"):
            await client.load("a")
        await client.close()


async def test_the_end_of_the_owner_is_noticed(tmp_path: Path) -> None:
    owner = Owner(tmp_path, ModelPoolConfig())
    await owner.pool.start()
    await owner.control.start()
    client = await ControlClient(owner.control.path).start()
    assert not client.ended.is_set()
    await owner.control.close()
    await asyncio.wait_for(client.ended.wait(), 10)
    assert client.ended.is_set()
    await client.close()
    await owner.pool.close()
