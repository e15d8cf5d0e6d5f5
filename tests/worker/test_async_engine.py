"""The engine on its own thread: clean ends, a loop that raises, and the duration of a step."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quicksilver.core import EngineClient, EngineState, Request
from quicksilver.engine.engine import Engine, StepEvent
from quicksilver.errors import EngineDied, EngineUnavailable
from quicksilver.worker.async_engine import NUM_BUILDERS, AsyncEngine
from tests.support.tiny import decode_params, tiny_engine

PROMPT = tuple(range(1, 30))
PARAMS = decode_params("verify", canvas_len=8, max_new_tokens=24)


async def collect(client: EngineClient, request: Request) -> int:
    """The number of events."""
    return len([event async for event in client.stream(request)])


async def test_a_closed_client_refuses() -> None:
    engine = AsyncEngine(tiny_engine())
    await engine.close()
    assert not engine.is_ready
    with pytest.raises(EngineUnavailable):
        await collect(engine, Request("x", PROMPT, PARAMS))


async def test_an_engine_that_raises_in_its_loop_fails_its_requests_with_a_reason() -> None:
    engine = tiny_engine()
    engine.scheduler.plan = lambda *_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    client = AsyncEngine(engine)
    with pytest.raises(EngineDied, match="division"):
        await collect(client, Request("x", PROMPT, PARAMS))
    assert not client.is_ready
    await client.close()


def slowed(engine: Engine) -> threading.Event:
    """Steps of the engine wait for this event."""
    may_go_on, step = threading.Event(), engine.step

    def slow() -> list[StepEvent]:
        may_go_on.wait(60)
        return step()

    engine.step = slow  # type: ignore[method-assign]
    return may_go_on


async def until_in_step(client: AsyncEngine) -> None:
    async with asyncio.timeout(30):
        while client.health().step_s < 0.05:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_request_that_the_engine_has_not_taken_yet_ends_with_it(fails: bool) -> None:
    engine = tiny_engine()
    may_go_on, client = slowed(engine), AsyncEngine(engine)
    taken = asyncio.create_task(collect(client, Request("taken", PROMPT, PARAMS)))
    await until_in_step(client)
    waiting = asyncio.create_task(collect(client, Request("waiting", PROMPT, PARAMS)))
    await asyncio.sleep(0.05)
    if fails:
        engine.scheduler.plan = lambda *_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    closing = asyncio.create_task(client.close() if not fails else asyncio.sleep(0))
    await asyncio.sleep(0.05)
    may_go_on.set()
    async with asyncio.timeout(30):
        ends = await asyncio.gather(taken, waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [EngineDied, EngineDied]
    client.abort("waiting")  # is ignored
    await closing
    await client.close()


async def test_a_grammar_that_no_thread_has_taken_is_refused_when_the_engine_is_closed() -> None:
    client, may_go_on = AsyncEngine(tiny_engine()), threading.Event()
    building = [asyncio.create_task(client._on_builder(lambda: may_go_on.wait(60))) for _ in range(NUM_BUILDERS)]
    waiting, cancelled = (asyncio.create_task(client._on_builder(lambda: True)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await client.close()
    with pytest.raises(EngineUnavailable):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    may_go_on.set()
    assert await asyncio.gather(*building) == [True] * NUM_BUILDERS


def test_a_reader_whose_event_loop_was_closed_does_not_end_the_engine() -> None:
    engine = tiny_engine()
    may_go_on, client, gone = slowed(engine), AsyncEngine(engine), asyncio.new_event_loop()

    class Sink:
        loop = gone

        def take(self, events: object) -> None: ...

    gone.run_until_complete(client.submit(Request("gone", PROMPT, PARAMS), Sink()))
    gone.close()
    may_go_on.set()

    async def ask() -> int:
        num_events = await collect(client, Request("x", PROMPT, PARAMS))
        await client.close()
        return num_events

    assert asyncio.run(ask()) > 0


async def test_the_duration_of_a_running_step_is_known_outside_its_thread() -> None:
    engine = tiny_engine()
    may_go_on, client = slowed(engine), AsyncEngine(engine)
    assert client.health().step_s == 0.0
    asking = asyncio.create_task(collect(client, Request("x", PROMPT, PARAMS)))
    await until_in_step(client)
    may_go_on.set()
    await asking
    async with asyncio.timeout(30):
        while client.health().step_s:
            await asyncio.sleep(0.01)
    assert client.health().state is EngineState.READY
    await client.close()
    assert client.health().state is EngineState.CLOSED
