"""The port of a replica and the connections to it, over loopback with scripted engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from quicksilver.cluster.ray import listener, messages
from quicksilver.cluster.ray.client import ReplicaConnection, open_connection
from quicksilver.cluster.ray.listener import ReplicaListener
from quicksilver.core import Delta, Event, FinishReason, Request, ScoreRequest
from quicksilver.errors import ContextTooLong, EngineDied, EngineOverloaded, EngineUnavailable
from quicksilver.worker import protocol
from tests.support.fake_engine import INFO, FakeEngine, Script, spoken

REQUEST = Request("r", (5,))


def waiting(request: Request) -> list[Delta | object]:
    return [Delta(request.id, (1,)), asyncio.Event().wait]


class Replica:
    """A listener in front of a scripted engine."""

    def __init__(self, script: Script, max_open: int) -> None:
        self.engine = FakeEngine(script)
        self.listener = ReplicaListener(self.engine, max_open)
        self._max_open = max_open
        self.connections: list[ReplicaConnection] = []

    @property
    def info(self) -> messages.ReplicaInfo:
        return messages.ReplicaInfo("one", "127.0.0.1", self.listener.port, self.listener.secret, self._max_open)

    async def connect(self) -> ReplicaConnection:
        self.connections.append(await open_connection(self.info))
        return self.connections[-1]

    async def until_idle(self) -> None:
        async with asyncio.timeout(20):
            while self.engine.num_open or self.listener.engine.num_open:
                await asyncio.sleep(0.001)


async def until_closed(found: ReplicaListener) -> None:
    async with asyncio.timeout(20):
        while found._writers:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def opened(script: Script, max_open: int = 16) -> AsyncIterator[Replica]:
    found = Replica(script, max_open)
    await found.listener.open("127.0.0.1")
    try:
        yield found
    finally:
        for connection in found.connections:
            await connection.close()
        await found.until_idle()
        await found.listener.drain()
        await until_closed(found.listener)


@pytest.fixture(autouse=True)
def quick_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "NOTICE_S", 0.0)


async def test_streams_of_several_clients_have_their_own_events() -> None:
    async with opened(lambda request: spoken(request, request.prompt_ids, 1)) as replica:
        connections = [await replica.connect() for _ in range(3)]
        requests = [Request(f"r{i}", (i, i + 1, i + 2)) for i in range(12)]

        async def read(number: int) -> list[Event]:
            return [event async for event in connections[number % 3].stream(requests[number])]

        for number, events in enumerate(await asyncio.gather(*map(read, range(12)))):
            deltas = [event for event in events if isinstance(event, Delta)]
            assert tuple(token for each in deltas for token in each.token_ids) == requests[number].prompt_ids
            assert deltas[-1].finish is FinishReason.STOP


async def test_scores_and_refusals_arrive() -> None:
    async with opened(lambda request: [ContextTooLong("too long")]) as replica:
        connection = await replica.connect()
        assert len((await connection.score(ScoreRequest("s", (5,), ((1,), (2, 3))))).logprobs) == 2
        with pytest.raises(ContextTooLong):
            await anext(connection.stream(REQUEST))


async def test_an_engine_that_died_under_a_request_fails_it_alone() -> None:
    async with opened(lambda request: [EngineDied("three workers died")]) as replica:
        connection = await replica.connect()
        with pytest.raises(EngineDied, match="three workers"):
            await anext(connection.stream(REQUEST))
        assert connection.is_ready


async def test_closing_a_stream_aborts_it_in_the_engine() -> None:
    async with opened(waiting) as replica:
        stream = (await replica.connect()).stream(REQUEST)
        await anext(stream)
        assert replica.engine.num_open == 1
        await stream.aclose()
        await replica.until_idle()
        assert replica.engine.num_aborted == 1


async def test_the_end_of_a_client_aborts_its_requests_and_no_others() -> None:
    async with opened(waiting) as replica:
        leaving, staying = await replica.connect(), await replica.connect()
        streams = [leaving.stream(REQUEST), staying.stream(replace(REQUEST, id="other"))]
        for stream in streams:
            await anext(stream)
        await leaving.close()
        async with asyncio.timeout(20):
            while replica.engine.num_open > 1:
                await asyncio.sleep(0.001)
        assert (replica.engine.num_aborted, replica.listener.engine.num_open) == (1, 1)
        await streams[1].aclose()


async def test_open_requests_fail_when_the_connection_ends() -> None:
    async with opened(waiting) as replica:
        connection = await replica.connect()
        stream = connection.stream(REQUEST)
        await anext(stream)
        replica.listener._close_connections()
        with pytest.raises(EngineDied, match="connection"):
            await anext(stream)
        assert not connection.takes_requests


async def test_a_silent_replica_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SILENT_S", 0.05)
    monkeypatch.setattr(protocol, "HEARTBEAT_S", 0.01)
    async with opened(waiting) as replica:
        connection = await replica.connect()
        stream = connection.stream(REQUEST)
        await anext(stream)
        # As if its machine were gone: the connection stays open, and nothing arrives.
        connection._writer.transport.pause_reading()  # type: ignore[union-attr]
        with pytest.raises(EngineDied):
            await anext(stream)


async def test_a_full_replica_refuses_further_requests() -> None:
    async with opened(waiting, max_open=2) as replica:
        first, second = await replica.connect(), await replica.connect()
        streams = [each.stream(replace(REQUEST, id=str(i))) for i, each in enumerate((first, second))]
        for stream in streams:
            await anext(stream)
        with pytest.raises(EngineOverloaded, match="full"):
            await anext(first.stream(replace(REQUEST, id="third")))
        with pytest.raises(EngineOverloaded, match="full"):
            await second.score(ScoreRequest("s", (5,), ((1,),)))
        for stream in streams:
            await stream.aclose()
        await replica.until_idle()
        assert len((await second.score(ScoreRequest("s", (5,), ((1,),)))).logprobs) == 1


async def test_a_client_sends_at_most_as_many_requests_as_the_replica_takes() -> None:
    async with opened(waiting, max_open=2) as replica:
        connection = await replica.connect()
        connection.num_open = 1
        assert connection.takes_requests
        connection.num_open = 2
        assert not connection.takes_requests


async def test_connections_end_when_another_model_was_loaded() -> None:
    """A new one announces the new model."""
    async with opened(lambda request: spoken(request, (1,))) as replica:
        connection = await replica.connect()
        replica.engine.info = replace(INFO, fingerprint="fp_other")
        with pytest.raises(EngineDied):
            await anext(connection.stream(REQUEST))
        again = await replica.connect()
        assert again.info.fingerprint == "fp_other"
        assert len([event async for event in again.stream(replace(REQUEST, id="again"))]) == 1


async def test_clients_without_the_secret_are_refused_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_STRANGERS", 1)
    async with opened(waiting) as replica:
        stranger, writer = await asyncio.open_connection("127.0.0.1", replica.info.port)
        await stranger.readexactly(1)
        with pytest.raises(EngineUnavailable, match="no connection to the replica"):
            await replica.connect()
        writer.write(bytes(64))
        with pytest.raises(asyncio.IncompleteReadError):
            await stranger.readexactly(64)
        writer.close()
        assert (await replica.connect()).is_ready
