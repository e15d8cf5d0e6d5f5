"""The queue between engine and reader: no delta is lost, one frame is kept, errors come last."""

from __future__ import annotations

import pytest

from quicksilver.core import Delta, Event, FinishReason, Frame, TokenLogprob, Usage
from quicksilver.worker.mailbox import Mailbox


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
