"""Several models in one pool: loading on demand, bounded waits, eviction, idle unload, pins."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quicksilver.core import Delta, EngineState, Request
from quicksilver.errors import EngineUnavailable
from quicksilver.worker import pool as pool_module
from quicksilver.worker.pool import EnginePool, ModelPoolConfig, PooledModel, estimate_bytes, resident_bytes
from quicksilver.worker.program import WorkerConfig
from tests.support.fake_engine import INFO, FakeEngine, spoken


class FakeRemote(FakeEngine):
    """A RemoteEngine without a process; `gate` decides when its load ends, `fault` how."""

    def __init__(self, worker: WorkerConfig, gate: asyncio.Event, fault: Exception | None) -> None:
        super().__init__(lambda request: spoken(request, (1, 2, 3)), info=replace(INFO, model=worker.model))
        self.worker, self.gate, self.fault = worker, gate, fault
        self.worker_pid = None
        self.socket_path = Path(worker.model)
        self.is_ready = False

    async def start(self) -> FakeRemote:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.is_ready = True
        return self


class Fleet:
    """The engines that a pool has started, and the gates of their loads."""

    def __init__(self) -> None:
        self.started: list[FakeRemote] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.faults: dict[str, Exception] = {}

    def start(self, worker: WorkerConfig) -> FakeRemote:
        gate = self.gates.get(worker.model)
        if gate is None:
            gate = asyncio.Event()
            gate.set()
        remote = FakeRemote(worker, gate, self.faults.get(worker.model))
        self.started.append(remote)
        return remote

    @property
    def names(self) -> list[str]:
        return [remote.worker.model for remote in self.started]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@asynccontextmanager
async def running(
    fleet: Fleet, *names: str, pinned: tuple[str, ...] = (), need: int = 10, **settings: float
) -> AsyncIterator[EnginePool]:
    models = [PooledModel(name, WorkerConfig(name), name in pinned, need) for name in names]
    pool = EnginePool(models, ModelPoolConfig(**settings), fleet.start)  # type: ignore[arg-type]
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
    assert not any(remote.is_ready for remote in fleet.started), "a worker was left"


async def until(condition: object, limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def answer(pool: EnginePool, name: str) -> int:
    events = [event async for event in pool.engines[name].stream(Request("r", (5,)))]
    return sum(len(event.token_ids) for event in events if isinstance(event, Delta))


async def test_the_default_is_loaded_first_and_the_others_after_it(fleet: Fleet) -> None:
    fleet.gates["b"] = asyncio.Event()
    async with running(fleet, "a", "b") as pool:
        assert pool.engines["a"].health().state is EngineState.READY
        assert await answer(pool, "a") == 3
        await until(lambda: fleet.names == ["a", "b"])
        assert pool.engines["b"].health().state is EngineState.STARTING
        with pytest.raises(EngineUnavailable):
            _ = pool.engines["b"].info
        fleet.gates["b"].set()
        assert await answer(pool, "b") == 3
        assert pool.engines["b"].info.model == "b"


async def test_a_model_that_a_request_loaded_is_not_loaded_again_at_the_start(fleet: Fleet) -> None:
    """A request for d arrives while b is loading, so d is loaded before c."""
    fleet.gates["b"] = asyncio.Event()
    async with running(fleet, "a", "b", "c", "d") as pool:
        await until(lambda: "b" in fleet.names)
        asking = asyncio.create_task(answer(pool, "d"))
        await until(lambda: pool.engines["d"].health().state is EngineState.STARTING)
        fleet.gates["b"].set()
        assert await asking == 3
        await until(lambda: all(task.done() for task in pool._tasks))
        assert fleet.names == ["a", "b", "d", "c"]


async def test_a_request_for_a_loading_model_waits_then_is_refused_with_a_delay(fleet: Fleet) -> None:
    fleet.gates["b"] = asyncio.Event()
    async with running(fleet, "a", "b", load_wait_s=0.05, max_load_waiting=2) as pool:
        await until(lambda: "b" in fleet.names)
        waiting = [asyncio.create_task(pool.engines["b"].load()) for _ in range(3)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        messages = sorted(str(result) for result in results)
        assert messages[0] == "b is loading and 2 requests wait for it"
        assert messages[1:] == ["b is loading; retry shortly"] * 2
        assert all(isinstance(result, EngineUnavailable) and result.retry_after_s >= 1 for result in results)
        fleet.gates["b"].set()
        await until(lambda: pool.engines["b"].is_loaded)
        assert fleet.names == ["a", "b"], "a refused request did not start a second worker"


async def test_an_idle_model_is_unloaded_and_loaded_again_by_the_next_request(fleet: Fleet) -> None:
    async with running(fleet, "a", "b", pinned=("a",), idle_unload_s=0.1) as pool:
        assert await answer(pool, "b") == 3
        await until(lambda: not pool.engines["b"].is_loaded)
        assert pool.engines["b"].health().state is EngineState.UNLOADED
        assert pool.engines["b"].info.model == "b", "the facts of an unloaded model stay known"
        assert await answer(pool, "b") == 3
        assert fleet.names == ["a", "b", "b"]
        assert pool.engines["a"].is_loaded, "a pinned model stays"


async def test_a_model_with_open_requests_is_not_unloaded(fleet: Fleet) -> None:
    go = asyncio.Event()
    async with running(fleet, "a", idle_unload_s=0.05) as pool:
        fleet.started[0].script = lambda request: [*spoken(request, (1, 2, 3), 1)[:1], go.wait, *spoken(request, (2,))]
        reading = asyncio.create_task(answer(pool, "a"))
        await asyncio.sleep(0.3)
        assert pool.engines["a"].is_loaded
        go.set()
        assert await reading == 2
        pool.engines["a"].num_open_elsewhere = 1
        await asyncio.sleep(0.3)
        assert pool.engines["a"].is_loaded, "another process uses it"
        pool.engines["a"].num_open_elsewhere = 0
        await until(lambda: not pool.engines["a"].is_loaded)


async def test_a_model_is_not_unloaded_before_the_request_that_waited_for_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of the worker is measured after the load and before the waiting request goes on."""
    seen: list[tuple[bool, bool]] = []
    async with running(fleet, "a", "b", pinned=("a",)) as pool:
        engine = pool.engines["b"]
        await until(lambda: engine.is_loaded)
        await engine.unload()

        def measure(pid: int | None) -> int:
            seen.append((engine.is_loaded, engine.can_unload))
            return 0

        monkeypatch.setattr(pool_module, "resident_bytes", measure)
        assert await answer(pool, "b") == 3
        assert seen == [(True, False)]
        assert engine.can_unload


async def test_a_request_whose_model_is_unloaded_before_it_goes_on_is_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(fleet, "a") as pool:
        monkeypatch.setattr(pool.engines["a"], "load", pool.engines["a"].unload)
        with pytest.raises(EngineUnavailable, match="a was unloaded"):
            await answer(pool, "a")


async def test_the_model_unused_for_the_longest_time_makes_room(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for two models of 10; the third is loaded in the place of the oldest that is not pinned."""
    monkeypatch.setattr(
        pool_module, "available_bytes", lambda: 20 - 10 * sum(remote.is_ready for remote in fleet.started)
    )
    async with running(fleet, "a", "b", "c", pinned=("a",)) as pool:
        await until(lambda: fleet.names == ["a", "b", "c"])
        await until(lambda: pool.engines["c"].is_loaded)
        assert not pool.engines["b"].is_loaded
        assert await answer(pool, "b") == 3
        assert [name for name, engine in pool.engines.items() if engine.is_loaded] == ["a", "b"]


async def test_without_room_a_request_is_refused_and_nothing_is_unloaded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "available_bytes", lambda: 5)
    async with running(fleet, "a", "b", pinned=("a",)) as pool:
        with pytest.raises(EngineUnavailable, match=r"not enough memory to load b now \(loaded: a\)"):
            await pool.engines["b"].begin_load()
        with pytest.raises(EngineUnavailable, match="could not be loaded") as refused:
            await pool.engines["b"].load()
        assert refused.value.retry_after_s == 10
        assert fleet.names == ["a"]


async def test_a_load_that_fails_is_tried_again_later(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.faults["b"] = EngineUnavailable("the engine worker did not start")
    async with running(fleet, "a", "b") as pool:
        await until(lambda: "b" in fleet.names)
        with pytest.raises(EngineUnavailable, match="could not be loaded"):
            await pool.engines["b"].load()
        del fleet.faults["b"]
        monkeypatch.setattr(pool_module, "FAILED_RETRY_S", 0.0)
        assert await answer(pool, "b") == 3


async def test_a_default_model_that_cannot_be_loaded_ends_the_start(fleet: Fleet) -> None:
    fleet.faults["a"] = EngineUnavailable("the engine worker did not start")
    with pytest.raises(EngineUnavailable, match="did not start"):
        async with running(fleet, "a", "b"):
            pass
    assert fleet.names == ["a"]


async def test_each_worker_gets_a_share_of_memory_and_leaves_room_for_the_rest(fleet: Fleet) -> None:
    async with running(fleet, "a", "b", need=100) as pool:
        await until(lambda: pool.engines["b"].is_loaded)
        plans = [remote.worker.engine for remote in fleet.started]
    assert plans[0] == {"memory_share": 0.5, "reserved_bytes": 100}
    assert plans[1] == {"memory_share": 0.5, "reserved_bytes": 0}


async def test_a_single_model_uses_the_whole_memory(fleet: Fleet) -> None:
    async with running(fleet, "a"):
        assert fleet.started[0].worker.engine == {}


def test_estimates_come_from_the_size_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x" * 100)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    assert estimate_bytes(tmp_path / "m.gguf") == 300
    assert estimate_bytes(tmp_path) == 125
    assert resident_bytes(None) == 0
    assert resident_bytes(os.getpid()) > 1 << 20
