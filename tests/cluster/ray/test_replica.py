"""An engine replica without Ray: its replies, heartbeats and aborts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from quicksilver.cluster.ray import messages, replica
from quicksilver.cluster.ray.replica import EngineReplica
from quicksilver.core import Delta, Request, ScoreRequest
from quicksilver.errors import ContextTooLong
from quicksilver.worker import protocol
from tests.support.fake_engine import INFO, FakeEngine, spoken

NAME = "replica-1"
REQUEST = Request("r", (5,))


class Replica(EngineReplica):
    """Ray Serve awaits `__del__`."""

    def __del__(self) -> None:  # type: ignore[override]
        pass


async def opened(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Replica:
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id=NAME))
    serve = SimpleNamespace(get_replica_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=serve))

    async def start() -> FakeEngine:
        return engine

    monkeypatch.setattr(replica, "RemoteEngine", lambda command: SimpleNamespace(start=start))
    found = Replica.__new__(Replica)
    await EngineReplica.__init__(found, messages.encode(messages.ReplicaConfig([])))
    return found


async def decoded(bodies: AsyncIterator[bytes]) -> list[messages.StreamReply]:
    return [messages.decode_reply(body) async for body in bodies]


def command(request: Request | ScoreRequest) -> bytes:
    return messages.encode(protocol.Submit(request) if isinstance(request, Request) else protocol.Score(request))


async def test_a_stream_is_accepted_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await opened(FakeEngine(lambda request: spoken(request, (1, 2, 3), 1)), monkeypatch)
    accepted, *replies = await decoded(found.stream(command(REQUEST), [], []))
    assert accepted == messages.Accepted(NAME, INFO.fingerprint)
    deltas = [delta for each in replies if isinstance(each, protocol.GotEvents) for delta in each.deltas]
    assert [token for delta in deltas for token in delta.token_ids] == [1, 2, 3]
    assert not found._open


async def test_scores_are_a_stream_with_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await opened(FakeEngine(lambda request: []), monkeypatch)
    accepted, scored = await decoded(found.stream(command(ScoreRequest("s", (5,), ((1,), (2, 3)))), [], []))
    assert accepted == messages.Accepted(NAME, INFO.fingerprint)
    assert isinstance(scored, protocol.GotScores)
    assert len(scored.scores.logprobs) == 2


async def test_errors_are_sent_as_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await opened(FakeEngine(lambda request: [ContextTooLong("too long")]), monkeypatch)
    _, refused = await decoded(found.stream(command(REQUEST), [], []))
    assert isinstance(refused, protocol.Refused)
    assert isinstance(protocol.to_error(refused), ContextTooLong)


async def test_heartbeats_are_sent_while_there_are_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "HEARTBEAT_S", 0.01)
    go = asyncio.Event()
    found = await opened(FakeEngine(lambda request: [go.wait, *spoken(request, (1,))]), monkeypatch)
    bodies = found.stream(command(REQUEST), [], [])
    kinds = [type(messages.decode_reply(await anext(bodies))) for _ in range(3)]
    assert kinds == [messages.Accepted, protocol.Heartbeat, protocol.Heartbeat]
    go.set()
    replies = await decoded(bodies)
    assert isinstance(replies[-1], protocol.GotEvents)


@pytest.mark.parametrize("is_reading", [True, False])
async def test_an_abort_ends_a_request_whose_reader_is_gone(is_reading: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the stream waits for the engine, and while it waits for its reader."""
    engine = FakeEngine(lambda request: [Delta(request.id, (1,)), asyncio.Event().wait])
    found = await opened(engine, monkeypatch)
    bodies = found.stream(command(REQUEST), [], [])
    for _ in range(2):
        await anext(bodies)
    reading = [asyncio.ensure_future(anext(bodies))] if is_reading else []
    for _ in range(5):
        await asyncio.sleep(0)
    await found.abort("r", [], [], "another")
    assert engine.num_open == 1
    await found.abort("r", [], [], NAME)
    await asyncio.gather(*reading, return_exceptions=True)
    async with asyncio.timeout(20):
        while engine.num_open:
            await asyncio.sleep(0.001)
    assert engine.num_aborted == 1
    await bodies.aclose()
    assert not found._open
