"""Slow grammars, with a scripted clock: they delay themselves, hardly their neighbours, and change no text."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from quicksilver.backends.base import Outcome, Work
from quicksilver.core import ConstraintSpec, Delta, MaskTask, Request, TokenConstraint
from quicksilver.engine.engine import Engine
from quicksilver.engine.step_limits import (
    ALLOWANCE_S,
    CLOCK_ERROR_S,
    GROUPED_ROW_S,
    MAX_GROUPED,
    GrammarBudget,
    ProcessorClock,
    TimedConstraint,
    TimedGroup,
    take_overrun_s,
)
from quicksilver.errors import InvalidGrammar
from quicksilver.worker.async_engine import AsyncEngine
from tests.engine.test_constrained import PROMPT, run
from tests.support.staircase import STOP, Staircase
from tests.support.tiny import answers, decode_params, finish_all, tiny_engine

FORWARD_S = 0.05
PARAMS = decode_params("verify", canvas_len=8, stop_ids=(STOP,), max_new_tokens=60)
# Largest slowdown of other requests by a hostile grammar.
SLOWED = 1.25


class ScriptedClock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(Staircase):
    """Every bitmask takes `mask_s` of scripted time."""

    def __init__(self, clock: ScriptedClock, mask_s: float) -> None:
        super().__init__()
        self._clock, self._mask_s = clock, mask_s

    def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
        self._clock.now += self._mask_s
        return super().write_masks(ahead, out)


def clocked_engine(clock: ScriptedClock, mask_s: float) -> Engine:
    """Only forwards and slow bitmasks take time."""
    engine = tiny_engine()
    engine.scheduler.grammar_budget = GrammarBudget(clock)
    forward = engine.backend.run

    def timed_forward(works: Sequence[Work]) -> list[Outcome | None]:
        clock.now += FORWARD_S
        return forward(works)

    def make(spec: ConstraintSpec) -> TokenConstraint:
        return Slow(clock, mask_s) if spec.grammar == "slow" else Staircase()

    engine.backend.run = timed_forward  # type: ignore[method-assign]
    engine.constraints = make
    return engine


def seconds_until(names: Sequence[str], num_slow: int, mask_s: float) -> float:
    """Scripted time until all of `names` have their answers, with slow neighbours beside them."""
    clock = ScriptedClock()
    engine = clocked_engine(clock, mask_s)
    for i in range(num_slow):
        engine.add(Request(f"slow {i}", PROMPT, PARAMS, constraint=ConstraintSpec("slow")))
    for name in names:
        engine.add(Request(name, PROMPT, PARAMS, constraint=ConstraintSpec("quick")))
    waiting = set(names)
    start = clock.now
    while waiting:
        events = [event for event in engine.step() if isinstance(event, Delta) and event.finish is not None]
        waiting -= {event.request_id for event in events}
    return clock.now - start


@pytest.mark.parametrize("mask_s", [0.006, 0.05, 0.3])
@pytest.mark.parametrize("num_slow", [1, 3])
def test_slow_grammars_slow_their_neighbours_by_a_quarter_at_most(mask_s: float, num_slow: int) -> None:
    names = ["a", "b", "c"]
    assert seconds_until(names, num_slow, mask_s) <= SLOWED * seconds_until(names, 0, 0.0)


def test_a_grammar_that_becomes_slow_delays_its_neighbours_by_one_step() -> None:
    class Turning(Slow):
        def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
            self._clock.now += 0.4 if len(self.taken) > 5 else 0.0
            return Staircase.write_masks(self, ahead, out)

    clock = ScriptedClock()
    engine = clocked_engine(clock, 0.0)
    engine.constraints = lambda spec: Turning(clock, 0.0) if spec.grammar == "slow" else Staircase()
    for name in ("slow", "quick"):
        engine.add(Request(name, PROMPT, PARAMS, constraint=ConstraintSpec(name)))
    ended: dict[str, float] = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Delta) and event.finish is not None:
                ended[event.request_id] = clock.now
    assert ended["quick"] <= SLOWED * seconds_until(["quick"], 0, 0.0) + 0.4
    assert ended["slow"] > ended["quick"]


def test_every_slow_request_still_gets_its_text() -> None:
    engine = clocked_engine(ScriptedClock(), 0.2)
    for i in range(3):
        engine.add(Request(f"slow {i}", PROMPT, PARAMS, constraint=ConstraintSpec("slow")))
    engine.add(Request("quick", PROMPT, PARAMS, constraint=ConstraintSpec("quick")))
    found = answers(finish_all(engine))
    expected, _ = run("verify", max_new_tokens=60)
    assert found == dict.fromkeys(("slow 0", "slow 1", "slow 2", "quick"), expected)


def test_building_a_grammar_delays_no_step() -> None:
    """The engine finishes another stream while a grammar is being built, and that build waits for just this."""

    async def both() -> tuple[int, int]:
        is_built = threading.Event()

        def build(spec: ConstraintSpec) -> TokenConstraint:
            assert is_built.wait(60)
            return Staircase()

        engine = tiny_engine()
        engine.constraints = build
        client = AsyncEngine(engine)
        hostile = asyncio.ensure_future(count(client, Request("h", PROMPT, PARAMS, constraint=ConstraintSpec("h"))))
        plain = await count(client, Request("p", PROMPT, PARAMS))
        is_built.set()
        slow = await hostile
        await client.close()
        return plain, slow

    plain, slow = asyncio.run(both())
    assert plain > 0
    assert slow == 25


def test_a_request_cancelled_while_its_grammar_is_built_is_never_queued() -> None:
    async def leave() -> int:
        is_left = threading.Event()

        def build(spec: ConstraintSpec) -> TokenConstraint:
            assert is_left.wait(60)
            return Staircase()

        engine = tiny_engine()
        engine.constraints = build
        client = AsyncEngine(engine)
        gone = asyncio.ensure_future(count(client, Request("g", PROMPT, PARAMS, constraint=ConstraintSpec("g"))))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        is_left.set()
        assert await count(client, Request("p", PROMPT, PARAMS)) > 0
        await client.close()
        return engine.stats().requests

    assert asyncio.run(leave()) == 1


def test_a_grammar_that_is_refused_when_built_refuses_its_request() -> None:
    def build(spec: ConstraintSpec) -> TokenConstraint:
        raise InvalidGrammar("`grammar` cannot be enforced")

    async def ask() -> None:
        engine = tiny_engine()
        engine.constraints = build
        client = AsyncEngine(engine)
        try:
            await count(client, Request("x", PROMPT, PARAMS, constraint=ConstraintSpec("x")))
        finally:
            await client.close()

    with pytest.raises(InvalidGrammar):
        asyncio.run(ask())


async def count(client: AsyncEngine, request: Request) -> int:
    return sum([len(event.token_ids) async for event in client.stream(request) if isinstance(event, Delta)])


class TimedMasks:
    """A group whose calls take `seconds` of scripted time."""

    def __init__(self, clock: ScriptedClock, seconds: float) -> None:
        self._clock, self.seconds = clock, seconds

    def write_masks(self, tasks: Sequence[MaskTask[Staircase]]) -> list[int]:
        end = self._clock.now + self.seconds
        num_rows = [constraint.write_masks(ahead, out) for constraint, ahead, out in tasks]
        self._clock.now = end
        return num_rows


def grouped(clock: ScriptedClock, group: TimedMasks, mask_s: float = 2 * GROUPED_ROW_S) -> TimedConstraint:
    """A constraint whose own masks take `mask_s`, which has computed one."""
    inner = Slow(clock, mask_s)
    inner.group = group  # type: ignore[assignment]
    constraint = TimedConstraint(inner, clock)
    write_alone(constraint)
    constraint.take_spent_s()
    return constraint


def write_alone(constraint: TimedConstraint) -> None:
    constraint.write_masks((), np.zeros((1, 4), dtype=np.int32).data)


def write_together(clock: ScriptedClock, group: TimedMasks, constraints: Sequence[TimedConstraint]) -> None:
    rows = np.zeros((len(constraints), 1, 4), dtype=np.int32)
    tasks = [(constraint, (), row.data) for constraint, row in zip(constraints, rows, strict=True)]
    TimedGroup(group, clock).write_masks(tasks)


def test_only_masks_of_medium_cost_are_computed_together() -> None:
    clock = ScriptedClock()
    group = TimedMasks(clock, 0.0)
    costs = (GROUPED_ROW_S / 10, 2 * GROUPED_ROW_S, 2 * ALLOWANCE_S)
    assert [grouped(clock, group, mask_s).group is not None for mask_s in costs] == [False, True, False]
    assert grouped(clock, group).group == grouped(clock, group).group
    assert TimedConstraint(Staircase(), clock).group is None


def test_a_call_for_several_constraints_is_charged_in_equal_parts() -> None:
    clock = ScriptedClock()
    group = TimedMasks(clock, ALLOWANCE_S / 2)
    pair = [TimedConstraint(Staircase(), clock) for _ in range(2)]
    write_together(clock, group, pair)
    assert [one.take_spent_s() for one in pair] == pytest.approx([ALLOWANCE_S / 4] * 2)


def test_after_a_slow_call_each_constraint_is_measured_alone() -> None:
    clock = ScriptedClock()
    group = TimedMasks(clock, 10 * ALLOWANCE_S)
    pair = [grouped(clock, group) for _ in range(2)]
    write_together(clock, group, pair)
    assert [one.group for one in pair] == [None, None]
    assert [take_overrun_s(one) for one in pair] == [0.0, 0.0]
    write_alone(pair[0])
    assert [one.group is None for one in pair] == [False, True]


def test_a_constraint_is_measured_alone_from_time_to_time() -> None:
    clock = ScriptedClock()
    group = TimedMasks(clock, GROUPED_ROW_S)
    pair = [grouped(clock, group) for _ in range(2)]
    for _ in range(MAX_GROUPED):
        assert pair[0].group is not None
        write_together(clock, group, pair)
    assert pair[0].group is None
    write_alone(pair[0])
    assert pair[0].group is not None


def test_the_processor_clock_reads_processor_time_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, processor, readings = [100.0], [7.0], []
    monkeypatch.setattr("time.perf_counter", lambda: wall[0])
    monkeypatch.setattr("time.thread_time", lambda: readings.append(1) or processor[0])
    clock = ProcessorClock()
    assert clock() == 7.0
    wall[0] += CLOCK_ERROR_S / 2  # another thread ran
    assert clock() == pytest.approx(7.0 + CLOCK_ERROR_S / 2)
    assert len(readings) == 1
    wall[0], processor[0] = wall[0] + 1.0, 7.0 + CLOCK_ERROR_S / 4
    assert clock() == pytest.approx(7.0 + CLOCK_ERROR_S / 2)  # it never goes back
    wall[0], processor[0] = wall[0] + 1.0, 7.5
    assert clock() == 7.5
    assert len(readings) == 3


def test_the_processor_clock_is_that_of_the_calling_thread() -> None:
    """Whatever another thread has used it for before."""
    clock, excess = ProcessorClock(), list[float]()
    clock()
    thread = threading.Thread(target=lambda: excess.append(clock() - time.thread_time()))
    thread.start()
    thread.join()
    assert excess[0] <= CLOCK_ERROR_S
