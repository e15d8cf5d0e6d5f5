"""The engine client of a cluster against scripted replicas: choice, continuation, refusals, waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quicksilver.adapters import AdapterRef
from quicksilver.cluster.ray import client, failover, messages
from quicksilver.cluster.ray.client import ClusterEngine, prompt_keys
from quicksilver.core import (
    Delta,
    EngineHealth,
    EngineState,
    EngineStats,
    Event,
    FinishReason,
    Request,
    ScoreRequest,
    Scores,
    Usage,
)
from quicksilver.errors import EngineDied, EngineOverloaded, EngineUnavailable, QuicksilverError, RowFailed
from tests.support.fake_engine import INFO

REQUEST = Request("a", tuple(range(40)))
LOST = EngineDied("the connection to the replica ended")


# An event, an error to raise, or an event to wait for. Scores end the script of a ScoreRequest.
Step = Delta | Scores | QuicksilverError | asyncio.Event
Script = Callable[[Any], list[Step]]


class FakeConnection:
    """The connection to one replica."""

    def __init__(self, name: str, script: Script, seen: list[tuple[str, Any]]) -> None:
        self.name = name
        self.info = INFO
        self.num_open = self.num_aborted = 0
        self.is_ready = self.takes_requests = True
        self._script = script
        self._seen = seen

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        is_finished = False
        try:
            async for step in self._steps(request):
                assert isinstance(step, Delta)
                is_finished = step.finish is not None
                yield replace(step, request_id=request.id)
        except QuicksilverError:
            is_finished = True
            raise
        finally:
            self.num_aborted += not is_finished

    async def score(self, request: ScoreRequest) -> Scores:
        async for step in self._steps(request):
            assert isinstance(step, Scores)
            return step
        raise AssertionError

    async def _steps(self, request: Any) -> AsyncGenerator[Delta | Scores, None]:
        self._seen.append((self.name, request))
        for step in self._script(request):
            if isinstance(step, QuicksilverError):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                yield step

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY, stats=EngineStats(running=2, migrations=1))

    async def close(self) -> None:
        self.is_ready = False


class Replicas:
    """The deployment's handle, and the connections to its replicas. An entry of `described` is what a call raises, or
    None."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.scripts = scripts
        self.seen: list[tuple[str, Any]] = []
        self.described: list[BaseException | None] = []
        self.connections: dict[str, FakeConnection] = {}
        self.describe = SimpleNamespace(remote=self._describe)

    async def _describe(self, known: list[str]) -> bytes:
        error = self.described.pop(0) if self.described else None
        if error is not None:
            raise error
        name = next((name for name in self.scripts if name not in known), next(iter(self.scripts)))
        return messages.encode(messages.ReplicaInfo(name, "10.0.0.5", 1, b"", 8))

    async def connect(self, found: messages.ReplicaInfo) -> Any:
        name = found.replica
        self.connections[name] = FakeConnection(name, self.scripts[name], self.seen)
        return self.connections[name]


async def engine(**scripts: Script) -> tuple[ClusterEngine, Replicas]:
    """A client with connections to all replicas, of which the first is preferred."""
    replicas = Replicas(scripts)
    found = await ClusterEngine(replicas, replicas.connect).start()
    for _ in range(len(scripts) - 1):
        await found._find_one()
    for name in list(scripts)[1:]:
        # The choice is by load if the prompt has no preference.
        replicas.connections[name].num_open = 1
    return found, replicas


def delta(*tokens: int, **fields: Any) -> Delta:
    return Delta("a", tokens, **fields)


def rest(request: Request) -> list[Step]:
    """The answer 1 to 6, from where the request continues."""
    start = len(request.resume.token_ids) if request.resume else 0
    migrated = request.resume.usage.migrated if request.resume else 0
    return [delta(*range(start + 1, 7), finish=FinishReason.STOP, usage=Usage(40, 0, 6, migrated=migrated))]


@pytest.fixture(autouse=True)
def no_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least loaded replica is chosen."""
    monkeypatch.setattr(client, "prefix_key", lambda *_: None)


async def read(found: ClusterEngine, request: Request = REQUEST) -> tuple[list[int], Usage | None]:
    tokens, usage = list[int](), None
    async for event in found.stream(request):
        assert isinstance(event, Delta)
        assert event.request_id == request.id
        tokens += event.token_ids
        usage = event.usage
    return tokens, usage


@pytest.mark.parametrize("ending", [LOST, EngineUnavailable("the engine is closed")])
async def test_a_lost_replica_is_continued_at_another_one(ending: QuicksilverError) -> None:
    usage = Usage(40, 0, 2)
    found, replicas = await engine(first=lambda _: [delta(1), delta(2, usage=usage), ending], second=rest)
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
    assert (await found.stats()).migrations == 3, "a loss of this process, and one that each replica counted"


async def test_a_fourth_loss_fails_the_request() -> None:
    found, replicas = await engine(first=lambda _: [LOST])
    with pytest.raises(EngineDied, match="4 replicas"):
        await read(found)
    assert len(replicas.seen) == 4


async def test_errors_of_a_request_are_not_tried_elsewhere() -> None:
    found, replicas = await engine(first=lambda _: [RowFailed("bad row")], second=rest)
    with pytest.raises(RowFailed):
        await read(found)
    assert len(replicas.seen) == 1


async def test_a_new_request_that_is_refused_is_tried_at_one_other_replica() -> None:
    refusal = EngineOverloaded("full", retry_after_s=9.0)
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
    refusals: list[Step] = [EngineUnavailable("the engine is starting") for _ in range(5)]
    refusals += [EngineOverloaded("full"), EngineOverloaded("full")]

    def second(request: Request) -> list[Step]:
        return [refusals.pop()] if refusals else rest(request)

    found, replicas = await engine(first=lambda _: [delta(1, usage=Usage(40, 0, 1)), LOST], second=second)
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
    refusal = EngineUnavailable("the engine is starting")
    found, _ = await engine(first=lambda _: [delta(1), LOST], second=lambda _: [refusal])
    with pytest.raises(EngineUnavailable, match="is starting"):
        await read(found)


async def test_a_request_waits_for_a_replica_that_takes_it() -> None:
    """Until another request ends, and until another replica is found."""
    found, replicas = await engine(first=rest)
    first = replicas.connections["first"]
    first.takes_requests = False
    reading = [asyncio.create_task(read(found, replace(REQUEST, id=str(i)))) for i in range(2)]
    while len(found._waiting) < 2:
        await asyncio.sleep(0)
    first.takes_requests = True
    with found._counted(first):
        pass
    assert [tokens for tokens, _ in await asyncio.gather(*reading)] == [[1, 2, 3, 4, 5, 6]] * 2
    first.takes_requests = False
    waiting = asyncio.create_task(read(found))
    while not found._waiting:
        await asyncio.sleep(0)
    replicas.scripts["second"] = rest
    await found._find_one()
    assert (await waiting)[0] == [1, 2, 3, 4, 5, 6]
    assert replicas.seen[-1][0] == "second"
    assert [each.num_open for each in replicas.connections.values()] == [0, 0]


async def test_a_place_goes_to_the_next_request_if_the_woken_one_is_cancelled() -> None:
    found, replicas = await engine(first=rest)
    replicas.connections["first"].takes_requests = False
    first, second = (asyncio.create_task(read(found, replace(REQUEST, id=name))) for name in ("b", "c"))
    while len(found._waiting) < 2:
        await asyncio.sleep(0)
    replicas.connections["first"].takes_requests = True
    found._wake(1)
    first.cancel()
    async with asyncio.timeout(20):
        assert (await second)[0] == [1, 2, 3, 4, 5, 6]
    assert first.cancelled()


async def test_requests_that_wait_too_long_or_are_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ACCEPT_S", 0.02)
    found, replicas = await engine(first=rest)
    replicas.connections["first"].takes_requests = False
    with pytest.raises(EngineUnavailable, match="no replica is free"):
        await read(found)
    monkeypatch.setattr(client, "MAX_WAITING", 0)
    with pytest.raises(EngineOverloaded) as raised:
        await read(found)
    assert raised.value.retry_after_s == 5.0
    assert (await found.stats()).migrations == 1, "of the replica"


async def test_another_model_does_not_continue_a_request() -> None:
    found, replicas = await engine(first=lambda _: [delta(1), LOST], second=rest)
    replicas.connections["second"].info = replace(INFO, fingerprint="fp_other")
    with pytest.raises(EngineDied, match="replaced"):
        await read(found)


async def test_a_request_without_tokens_may_go_to_another_model() -> None:
    found, replicas = await engine(first=lambda _: [LOST], second=rest)
    replicas.connections["second"].info = replace(INFO, fingerprint="fp_other")
    assert (await read(found))[0] == [1, 2, 3, 4, 5, 6]


async def test_closing_a_stream_aborts_it_at_its_replica() -> None:
    found, replicas = await engine(first=lambda _: [delta(1), asyncio.Event()])
    stream = found.stream(REQUEST)
    await anext(stream)
    assert replicas.connections["first"].num_open == 1
    await stream.aclose()
    assert replicas.connections["first"].num_aborted == 1
    assert replicas.connections["first"].num_open == 0


async def test_equal_prefixes_go_to_the_same_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found, replicas = await engine(**{f"replica{i}": rest for i in range(4)})
    for each in replicas.connections.values():
        each.num_open = 0
    for number in range(24):
        await read(found, Request("a", (number % 8, *range(40))))
    chosen = [{name for name, each in replicas.seen if each.prompt_ids[0] == prefix} for prefix in range(8)]
    assert all(len(names) == 1 for names in chosen)
    assert len(set.union(*chosen)) > 1


SCORE = ScoreRequest("s", (1,), ((2,),))
SCORED = Scores(((-1.0,),), Usage(migrated=1))


async def test_scores_are_computed_again_at_another_replica() -> None:
    found, replicas = await engine(first=lambda _: [LOST], second=lambda _: [SCORED])
    scores = await found.score(SCORE)
    assert scores.logprobs == ((-1.0,),)
    assert scores.usage.migrated == 2, "a loss of this process, and one that the replica counted"
    (_, before), (name, after) = replicas.seen
    assert (before, name) == (SCORE, "second")
    assert after == replace(SCORE, id=after.id, is_continued=True)


async def test_replicas_are_found_whatever_a_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica whose connection ended is connected again, and a new one is found."""
    monkeypatch.setattr(client, "POLL_S", 0.001)
    found, replicas = await engine(first=rest)
    ended = replicas.connections["first"]
    ended.is_ready = False
    replicas.scripts["second"] = rest
    replicas.described = [OSError(), asyncio.CancelledError(), ValueError("a bug"), None, None]
    async with asyncio.timeout(20):
        while len(found._replicas) < 2:
            await asyncio.sleep(0.01)
    assert found._replicas["first"] is not ended
    assert found.health().state is EngineState.READY
    await found.close()


async def test_health_is_that_of_the_replicas() -> None:
    found, replicas = await engine(first=rest, second=rest)
    assert found.health().state is EngineState.READY
    assert found.health().stats.running == 4
    for each in replicas.connections.values():
        each.is_ready = False
    assert found.health().state is EngineState.STARTING
    await found.close()
    assert found.health().state is EngineState.CLOSED
    assert ClusterEngine(None).health().state is EngineState.STARTING


def test_keys_are_the_leading_pages_within_a_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

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
