"""The engine's figures within a bounded time, also if the engine does not answer."""

from __future__ import annotations

import asyncio

from quicksilver.core import EngineStats
from quicksilver.errors import EngineUnavailable
from quicksilver.server.engine_probe import EngineProbe
from tests.server.conftest import says
from tests.support.fake_engine import FakeEngine


class SlowEngine(FakeEngine):
    """Counts the calls of `stats`, which wait until `go` is set."""

    def __init__(self) -> None:
        super().__init__(says(""))
        self.go = asyncio.Event()
        self.num_calls = 0

    async def stats(self) -> EngineStats:
        self.num_calls += 1
        await self.go.wait()
        return await super().stats()


class DeadEngine(FakeEngine):
    async def stats(self) -> EngineStats:
        raise EngineUnavailable("the engine is starting")


async def test_an_engine_that_answers_gives_fresh_figures() -> None:
    engine = FakeEngine(says(""))
    reading = await EngineProbe(engine).read()
    assert reading.is_fresh
    assert reading.age_s == 0.0
    assert reading.stats == await engine.stats()


async def test_an_engine_that_does_not_answer_gives_those_of_its_last_heartbeat() -> None:
    for engine in (SlowEngine(), DeadEngine(says(""))):
        reading = await EngineProbe(engine, limit_s=0.01).read()
        assert not reading.is_fresh
        assert reading.stats == engine.health().stats


async def test_callers_share_one_open_question() -> None:
    engine = SlowEngine()
    probe = EngineProbe(engine, limit_s=0.01)
    readings = await asyncio.gather(*(probe.read() for _ in range(10)))
    assert not any(reading.is_fresh for reading in readings)
    assert engine.num_calls == 1
    engine.go.set()
    patient = EngineProbe(engine, limit_s=30)
    assert (await patient.read()).is_fresh
    assert engine.num_calls == 2
