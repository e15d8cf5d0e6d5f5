"""The engine client of a cluster against scripted replicas: continuation, refusals, silence, aborts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quicksilver.adapters import AdapterRef
from quicksilver.cluster.ray import client, failover, messages
from quicksilver.cluster.ray.client import CallErrors, ClusterEngine, prompt_keys
from quicksilver.core import Delta, EngineState, EngineStats, FinishReason, Request, ScoreRequest, Scores, Usage
from quicksilver.errors import EngineDied, EngineOverloaded, EngineUnavailable, RowFailed
from quicksilver.worker import protocol
from tests.support.fake_engine import INFO

REQUEST = Request("a", tuple(range(40)))
ACCEPTED = INFO.fingerprint


class Lost(Exception):
    """What Ray raises."""


class Full(Lost):
    """What Ray raises if the queue of the process is full."""


ERRORS = CallErrors(lost=(Lost,), full=(Full,))


# A reply to send, an exception to raise, or seconds to wait.
Step = Any
Script = Callable[[Any], list[Step]]


class Replies:
    """The stream of one call."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self.is_cancelled = False

    def __aiter__(self) -> Replies:
        return self

    async def __anext__(self) -> bytes:
        while self._steps:
            step = self._steps.pop(0)
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, BaseException):
                raise step
            else:
                return messages.encode(step)
        raise StopAsyncIteration

    def cancel(self) -> None:
        self.is_cancelled = True


class Replicas:
    """A handle: each call goes to the replica that the caller avoids the least."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.scripts = scripts
        self.seen: list[tuple[str, Any]] = []
        self.described: list[Step] = []
        self.replies: list[Replies] = []
        self.aborted: list[tuple[str, str]] = []
        self.stream = SimpleNamespace(remote=self._stream)
        self.describe = SimpleNamespace(remote=self._describe)
        self.abort = SimpleNamespace(remote=lambda request, keys, avoided, name: self.aborted.append((name, request)))

    def options(self, **options: object) -> Replicas:
        assert options == {"stream": True}
        return self

    def _stream(self, command: bytes, keys: list[bytes], avoided: list[str]) -> Replies:
        decoded = messages.decode_command(command)
        assert isinstance(decoded, protocol.Submit | protocol.Score)
        name = min(self.scripts, key=lambda name: avoided.index(name) if name in avoided else -1)
        self.seen.append((name, decoded.request))
        steps = self.scripts[name](decoded.request)
        self.replies.append(Replies([messages.Accepted(name, ACCEPTED), *steps]))
        return self.replies[-1]

    async def _describe(self, command: bytes, keys: list[bytes], avoided: list[str]) -> bytes:
        step = self.described.pop(0) if self.described else None
        if isinstance(step, BaseException):
            raise step
        return messages.encode(messages.ReplicaInfo("first", INFO, EngineStats(running=2 + len(self.described))))


async def engine(**scripts: Script) -> tuple[ClusterEngine, Replicas]:
    replicas = Replicas(scripts)
    return await ClusterEngine(replicas, ERRORS).start(), replicas


def delta(*tokens: int, **fields: Any) -> protocol.GotEvents:
    return protocol.GotEvents([Delta("a", tokens, **fields)])


def rest(request: Request) -> list[Step]:
    """The answer 1 to 6, from where the request continues."""
    start = len(request.resume.token_ids) if request.resume else 0
    migrated = request.resume.usage.migrated if request.resume else 0
    return [delta(*range(start + 1, 7), finish=FinishReason.STOP, usage=Usage(40, 0, 6, migrated=migrated))]


async def read(found: ClusterEngine, request: Request = REQUEST) -> tuple[list[int], Usage | None]:
    tokens, usage = list[int](), None
    async for event in found.stream(request):
        assert isinstance(event, Delta)
        assert event.request_id == request.id
        tokens += event.token_ids
        usage = event.usage
    return tokens, usage


@pytest.mark.parametrize(
    "ending",
    [
        [Lost()],
        [],
        [protocol.refuse("a", EngineDied("the worker died"))],
        [protocol.Heartbeat(EngineStats(), 0.0), Lost()],
        [asyncio.CancelledError()],
    ],
)
async def test_a_lost_replica_is_continued_at_another_one(ending: list[Step]) -> None:
    usage = Usage(40, 0, 2)
    found, replicas = await engine(first=lambda _: [delta(1), delta(2, usage=usage), *ending], second=rest)
    tokens, last = await read(found)
    assert tokens == [1, 2, 3, 4, 5, 6]
    assert last is not None
    assert last.migrated == 1
    (_, before), (name, after) = replicas.seen
    assert (before, name) == (REQUEST, "second")
    assert after.resume is not None
    assert (after.resume.token_ids, after.resume.usage) == ((1, 2), replace(usage, migrated=1))
    assert replace(after, resume=None, id="a") == REQUEST
    assert after.id != "a"
    assert (await found.stats()).migrations == 1


async def test_a_silent_replica_is_left_and_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SILENT_S", 0.05)
    found, replicas = await engine(first=lambda _: [delta(1), 60.0], second=rest)
    assert (await read(found))[0] == [1, 2, 3, 4, 5, 6]
    assert replicas.replies[0].is_cancelled
    assert replicas.aborted == [("first", "a")]


async def test_a_fourth_loss_fails_the_request() -> None:
    found, replicas = await engine(first=lambda _: [Lost()])
    with pytest.raises(EngineDied, match="4 replicas"):
        await read(found)
    assert len(replicas.seen) == 4


async def test_errors_of_a_request_are_not_tried_elsewhere() -> None:
    found, replicas = await engine(first=lambda _: [protocol.refuse("a", RowFailed("bad row"))], second=rest)
    with pytest.raises(RowFailed):
        await read(found)
    assert len(replicas.seen) == 1


async def test_a_new_request_that_is_refused_is_tried_at_one_other_replica() -> None:
    refusal = protocol.refuse("a", EngineOverloaded("full", retry_after_s=9.0))
    found, replicas = await engine(first=lambda _: [refusal], second=rest)
    tokens, usage = await read(found)
    assert tokens == [1, 2, 3, 4, 5, 6]
    assert usage is not None
    assert usage.migrated == 0
    (_, before), (name, after) = replicas.seen
    assert (name, after) == ("second", replace(before, id=after.id))
    found, replicas = await engine(first=lambda _: [refusal], second=lambda _: [refusal])
    with pytest.raises(EngineOverloaded) as raised:
        await read(found)
    assert raised.value.retry_after_s == 9.0
    assert len(replicas.seen) == 2


async def test_an_answer_that_has_begun_waits_for_a_replica_that_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of refusal, more of them than replicas may be lost."""
    monkeypatch.setattr(failover, "FIRST_PAUSE_S", 0.001)
    refusals: list[Step] = [protocol.refuse("a", EngineUnavailable("the engine is starting")) for _ in range(5)]
    refusals += [Full(), protocol.refuse("a", EngineOverloaded("full"))]

    def second(request: Request) -> list[Step]:
        return [refusals.pop()] if refusals else rest(request)

    found, replicas = await engine(first=lambda _: [delta(1, usage=Usage(40, 0, 1)), Lost()], second=second)
    tokens, usage = await read(found)
    assert tokens == [1, 2, 3, 4, 5, 6]
    assert usage is not None
    assert usage.migrated == 1
    assert len(replicas.seen) == 9
    assert len({request.id for _, request in replicas.seen}) == 9


async def test_an_answer_that_has_begun_fails_when_no_replica_takes_it_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failover, "RESUME_S", 0.05)
    refusal = protocol.refuse("a", EngineUnavailable("the engine is starting"))
    found, _ = await engine(first=lambda _: [delta(1), Lost()], second=lambda _: [refusal])
    with pytest.raises(EngineUnavailable, match="is starting"):
        await read(found)


async def test_a_full_queue_is_overload_and_no_loss() -> None:
    found, replicas = await engine(first=rest)
    replicas.stream = SimpleNamespace(remote=lambda *_: Replies([Full()]))
    with pytest.raises(EngineOverloaded) as raised:
        await read(found)
    assert raised.value.retry_after_s == 5.0
    assert (await found.stats()).migrations == 0


async def test_another_model_does_not_continue_a_request() -> None:
    def other(request: Request) -> list[Step]:
        return [messages.Accepted("second", "fp_other"), *rest(request)]

    found, _ = await engine(first=lambda _: [delta(1), Lost()], second=other)
    with pytest.raises(EngineDied, match="replaced"):
        await read(found)


async def test_closing_a_stream_cancels_it_at_its_replica() -> None:
    found, replicas = await engine(first=lambda _: [delta(1), 60.0])
    stream = found.stream(REQUEST)
    await anext(stream)
    await stream.aclose()
    assert replicas.replies[0].is_cancelled
    assert replicas.aborted == [("first", "a")]


SCORE = ScoreRequest("s", (1,), ((2,),))
SCORED = protocol.GotScores("s", Scores(((-1.0,),), Usage(migrated=1)))


@pytest.mark.parametrize(
    "ending",
    [[Lost()], [], [protocol.refuse("s", EngineDied("the worker died"))], [asyncio.CancelledError()], [60.0]],
)
async def test_scores_are_computed_again_at_another_replica(
    ending: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SILENT_S", 0.05)
    found, replicas = await engine(first=lambda _: list(ending), second=lambda _: [SCORED])
    scores = await found.score(SCORE)
    assert scores.logprobs == ((-1.0,),)
    assert scores.usage.migrated == 2, "a loss of this process, and one that the replica counted"
    (_, before), (name, after) = replicas.seen
    assert (before, name) == (SCORE, "second")
    assert after == replace(SCORE, id=after.id, is_continued=True)


async def test_replicas_are_asked_for_figures_whatever_a_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "POLL_S", 0.001)
    found, replicas = await engine(first=rest)
    replicas.described = [Lost(), asyncio.CancelledError(), ValueError("a bug"), None, None]
    async with asyncio.timeout(20):
        while replicas.described:
            await asyncio.sleep(0.01)
    assert found.health().state is EngineState.READY
    await found.close()


async def test_health_is_that_of_the_replicas() -> None:
    found, _ = await engine(first=rest)
    assert found.health().state is EngineState.READY
    assert found.health().stats.running == 2
    await found.close()
    assert found.health().state is EngineState.CLOSED
    assert ClusterEngine(None, ERRORS).health().state is EngineState.STARTING


def test_keys_are_the_leading_pages_within_a_tenant() -> None:
    def keys(*ids: int, tenant: str = "") -> list[bytes]:
        return prompt_keys(Request("a", ids, tenant=tenant), page_size=16)

    assert keys(*range(15)) == []
    assert keys(*range(16)) == keys(*range(16), 99, 98) != keys(*range(1, 17))
    assert keys(*range(64)) == keys(*range(64), 1)
    assert keys(*range(64)) != keys(*range(63), 0)
    assert keys(*range(16), tenant="b") != keys(*range(16))
    adapters = [AdapterRef(id, "/adapters/a") for id in ("1", "2")]
    found = [prompt_keys(Request("a", tuple(range(16)), adapter=ref), page_size=16) for ref in (None, *adapters)]
    assert len({key for one in found for key in one}) == 3, "pages depend on the adapter"
