"""An engine replica without Ray: its description, open requests, health and end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from quicksilver.cluster.ray import listener, messages, replica
from quicksilver.cluster.ray.client import open_connection
from quicksilver.cluster.ray.replica import EngineReplica
from quicksilver.cluster.ray.scaling import OPEN
from quicksilver.core import Delta, Request
from tests.cluster.ray.test_listener import until_closed
from tests.support.fake_engine import INFO, FakeEngine, spoken

NAME = "replica-1"


class Replica(EngineReplica):
    """Ray Serve awaits `__del__`."""

    def __del__(self) -> None:  # type: ignore[override]
        pass


@asynccontextmanager
async def opened(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replica]:
    monkeypatch.setattr(listener, "NOTICE_S", 0.0)
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id=NAME))
    ray = SimpleNamespace(
        serve=SimpleNamespace(get_replica_context=lambda: context),
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "node 2"),
        nodes=lambda: [
            {"NodeID": f"node {i}", "NodeManagerAddress": address} for i, address in ((1, "10.0.0.5"), (2, "127.0.0.1"))
        ],
    )
    monkeypatch.setitem(sys.modules, "ray", ray)

    async def start() -> FakeEngine:
        return engine

    monkeypatch.setattr(replica, "RemoteEngine", lambda command: SimpleNamespace(start=start))
    found = Replica.__new__(Replica)
    await EngineReplica.__init__(found, messages.encode(messages.ReplicaConfig([], max_open=7)))
    yield found
    await EngineReplica.__del__(found)  # type: ignore[misc]
    await until_closed(found._listener)


async def described(found: Replica) -> messages.ReplicaInfo:
    return messages.decode_info(await found.describe([]))


async def test_a_replica_listens_on_the_address_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(FakeEngine(lambda request: spoken(request, (1, 2, 3), 1)), monkeypatch) as found:
        info = await described(found)
        assert (info.replica, info.host, info.max_open) == (NAME, "127.0.0.1", 7)
        connection = await open_connection(info)
        assert connection.info == INFO
        events = [event async for event in connection.stream(Request("r", (5,)))]
        assert [token for event in events if isinstance(event, Delta) for token in event.token_ids] == [1, 2, 3]
        await connection.close()


async def test_a_replica_of_a_cluster_on_one_machine_listens_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(replica.HOST_VARIABLE, "127.0.0.2")
    async with opened(FakeEngine(lambda request: []), monkeypatch) as found:
        assert (await described(found)).host == "127.0.0.2"
        await (await open_connection(await described(found))).close()


async def test_a_replica_reports_its_open_requests_and_finishes_them_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = asyncio.Event()
    engine = FakeEngine(lambda request: [Delta(request.id, (1,)), go.wait, *spoken(request, (2,))])
    async with opened(engine, monkeypatch) as found:
        connection = await open_connection(await described(found))
        stream = connection.stream(Request("r", (5,)))
        await anext(stream)
        assert found.record_autoscaling_stats() == {OPEN: 1.0}
        ending = asyncio.create_task(EngineReplica.__del__(found))  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            while connection.takes_requests:
                await asyncio.sleep(0.01)
        assert connection.is_ready
        assert engine.is_ready
        go.set()
        assert [event.token_ids async for event in stream if isinstance(event, Delta)] == [(2,)]
        await ending
        assert found.record_autoscaling_stats() == {OPEN: 0.0}
        assert not engine.is_ready, "the engine was closed"
        async with asyncio.timeout(20):
            while connection.is_ready:
                await asyncio.sleep(0.01)
        await connection.close()


async def test_a_worker_that_does_not_start_makes_its_replica_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(lambda request: [])
    async with opened(engine, monkeypatch) as found:
        await found.check_health()
        engine.is_ready = False
        await found.check_health()
        monkeypatch.setattr(replica, "MAX_NOT_READY_S", -1.0)
        with pytest.raises(RuntimeError, match="does not start"):
            await found.check_health()
