"""The queue between engine and reader: no delta is lost, one frame is kept, errors come last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from quicksilver.core import Delta, Event, FinishReason, Frame, TokenLogprob, Usage
from quicksilver.worker.mailbox import BEHIND_S, MAX_HOLD_S, Mailbox


def frame(step: int) -> Frame:
    return Frame("x", step, (), (), ())


async def read_all(mailbox: Mailbox) -> list[Event]:
    return [event async for event in mailbox.read()]


async def test_deltas_arrive_in_order_and_the_last_one_ends_the_stream() -> None:
    mailbox, read = Mailbox(), []
    sent = [Delta("x", (1,)), Delta("x", (2,)), Delta("x", (3,), finish=FinishReason.STOP)]
    events = mailbox.read()
    for delta in sent:
        mailbox.put(delta)
        read.append(await anext(events))
    assert mailbox.is_finished
    assert read == sent
    assert [event async for event in events] == []


async def test_a_slow_reader_gets_the_waiting_deltas_as_one() -> None:
    mailbox = Mailbox()
    logprobs = [TokenLogprob(token, -0.5) for token in (1, 2, 3, 4)]
    mailbox.put(Delta("x", (1, 2), tuple(logprobs[:2]), num_forced=1, usage=Usage(completion_tokens=2)))
    mailbox.put(Delta("x", (3,), (logprobs[2],)))
    mailbox.put(Delta("x", (4,), (logprobs[3],), num_forced=1, finish=FinishReason.LENGTH))
    joined = Delta("x", (1, 2, 3, 4), tuple(logprobs), 2, FinishReason.LENGTH, Usage(completion_tokens=2))
    assert await read_all(mailbox) == [joined]


async def test_a_slow_reader_gets_only_the_newest_frame() -> None:
    mailbox = Mailbox()
    for step in range(5):
        mailbox.put(frame(step))
    events = mailbox.read()
    assert await anext(events) == frame(4)
    mailbox.put(Delta("x", finish=FinishReason.LENGTH))
    assert [event async for event in events] == [Delta("x", finish=FinishReason.LENGTH)]


async def test_an_error_comes_after_the_deltas_that_arrived_before_it() -> None:
    mailbox = Mailbox()
    mailbox.put(Delta("x", (1,)))
    mailbox.fail(RuntimeError("gone"))
    events = mailbox.read()
    assert await anext(events) == Delta("x", (1,))
    with pytest.raises(RuntimeError, match="gone"):
        await anext(events)


class ScriptedTime:
    """Time that only passes when the test says so, or when the event loop waits for a timer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        loop = asyncio.get_running_loop()
        select = loop._selector.select  # type: ignore[attr-defined]

        def pass_time(timeout: float | None) -> object:
            self.now += timeout or 0.0
            return select(0)

        monkeypatch.setattr(loop, "time", lambda: self.now)
        monkeypatch.setattr(loop._selector, "select", pass_time)  # type: ignore[attr-defined]

    def __call__(self) -> float:
        return self.now


async def started(mailbox: Mailbox) -> AsyncGenerator[Event, None]:
    """A reader that has read the first delta."""
    events = mailbox.read()
    mailbox.put(Delta("x", (0,)))
    assert await anext(events) == Delta("x", (0,))
    return events


async def test_a_delta_is_not_held_while_the_loop_keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedTime(monkeypatch)
    mailbox = Mailbox(clock)
    events = await started(mailbox)
    mailbox.put(Delta("x", (1,)))
    clock.now += BEHIND_S / 2
    before = clock.now
    assert await anext(events) == Delta("x", (1,))
    assert clock.now == before


async def test_a_busy_loop_joins_deltas_for_at_most_20_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_HOLD_S == 0.020
    clock = ScriptedTime(monkeypatch)
    mailbox = Mailbox(clock)
    events = await started(mailbox)
    arrival = clock.now
    mailbox.put(Delta("x", (1,)))
    clock.now += 1.2 * BEHIND_S
    asyncio.get_running_loop().call_later(0.5 * BEHIND_S, mailbox.put, Delta("x", (2,)))
    assert await anext(events) == Delta("x", (1, 2))
    assert clock.now == pytest.approx(arrival + MAX_HOLD_S)


@pytest.mark.parametrize("waited_s", [MAX_HOLD_S, 1.0])
async def test_a_delta_that_waited_as_long_is_not_held_longer(monkeypatch: pytest.MonkeyPatch, waited_s: float) -> None:
    clock = ScriptedTime(monkeypatch)
    mailbox = Mailbox(clock)
    events = await started(mailbox)
    mailbox.put(Delta("x", (1,)))
    clock.now += waited_s
    before = clock.now
    assert await anext(events) == Delta("x", (1,))
    assert clock.now == before


async def test_the_first_and_the_last_delta_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedTime(monkeypatch)
    mailbox = Mailbox(clock)
    mailbox.put(Delta("x", (1,)))
    clock.now += 1.5 * BEHIND_S
    before, events = clock.now, mailbox.read()
    assert await anext(events) == Delta("x", (1,))
    mailbox.put(Delta("x", (2,)))
    clock.now = before = before + 1.5 * BEHIND_S
    asyncio.get_running_loop().call_soon(mailbox.put, Delta("x", (3,), finish=FinishReason.STOP))
    assert await anext(events) == Delta("x", (2, 3), finish=FinishReason.STOP)
    assert clock.now == before


async def test_an_error_ends_the_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedTime(monkeypatch)
    mailbox = Mailbox(clock)
    events = await started(mailbox)
    mailbox.put(Delta("x", (1,)))
    clock.now = before = clock.now + 1.5 * BEHIND_S
    asyncio.get_running_loop().call_soon(mailbox.fail, RuntimeError("gone"))
    assert await anext(events) == Delta("x", (1,))
    assert clock.now == before
    with pytest.raises(RuntimeError, match="gone"):
        await anext(events)
