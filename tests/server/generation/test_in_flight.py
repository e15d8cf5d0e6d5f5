"""Requests above the limit in flight wait in order, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quicksilver.accounts.identity import ALL_SCOPES, Identity
from quicksilver.accounts.records import Limits
from quicksilver.core import Request
from quicksilver.errors import TooManyInFlight
from quicksilver.server.generation.in_flight import InFlightQueue
from tests.server.conftest import Served, chat
from tests.support.bank import Bank
from tests.support.fake_engine import Step, spoken

CHAT = "/v1/chat/completions"
KEY = Identity("key", "org/project/key", ALL_SCOPES)
OTHER = Identity("other", "org/project/other", ALL_SCOPES)


class Slots:
    """The ledger's limit: `num_free` requests may start."""

    def __init__(self, num_free: int) -> None:
        self.num_free = num_free
        self.admitted: list[str] = []

    def reserve(self, name: str) -> Callable[[], Awaitable[str]]:
        async def attempt() -> str:
            await asyncio.sleep(0)
            if self.num_free < 1:
                raise TooManyInFlight("full")
            self.num_free -= 1
            self.admitted.append(name)
            return name

        return attempt


async def admit_all(queue: InFlightQueue, slots: Slots, names: str) -> list[asyncio.Task[str]]:
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(queue.admit(KEY, slots.reserve(name))))
        await asyncio.sleep(0.005)
    return tasks


async def test_requests_start_in_the_order_of_arrival() -> None:
    queue, slots = InFlightQueue(10, 30), Slots(1)
    tasks = await admit_all(queue, slots, "abcd")
    assert (slots.admitted, queue.num_waiting) == (["a"], 3)
    slots.num_free = 2
    queue.end(KEY)
    await asyncio.wait_for(asyncio.gather(*tasks[:3]), 10)
    assert slots.admitted == ["a", "b", "c"]
    slots.num_free = 1
    assert await asyncio.wait_for(tasks[3], 10) == "d", "without a notice the queue looks by itself"
    assert queue.num_waiting == 0


async def test_an_end_in_the_same_organisation_wakes_the_queue() -> None:
    queue, slots = InFlightQueue(10, 30), Slots(0)
    (task,) = await admit_all(queue, slots, "a")
    slots.num_free = 1
    queue.end(OTHER)
    assert await asyncio.wait_for(task, 10) == "a"


async def test_the_queue_is_bounded_in_length_and_time() -> None:
    queue, slots = InFlightQueue(2, 0.3), Slots(0)
    tasks = await admit_all(queue, slots, "abc")
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results[:2]] == ["this request waited 0.3 s for others to end"] * 2
    assert str(results[2]) == "2 requests of this key wait already; let some end"
    with pytest.raises(TooManyInFlight, match="full"):
        await InFlightQueue(0, 30).admit(KEY, slots.reserve("d"))
    assert await queue.admit(OTHER, Slots(1).reserve("e")) == "e"


async def test_a_request_that_gives_up_leaves_its_place() -> None:
    queue, slots = InFlightQueue(10, 30), Slots(0)
    tasks = await admit_all(queue, slots, "ab")
    tasks[0].cancel()
    slots.num_free = 1
    queue.end(KEY)
    assert await asyncio.wait_for(tasks[1], 10) == "b"
    assert queue.num_waiting == 0


async def test_over_http_requests_above_the_limit_wait_instead_of_a_429(served: Served, bank: Bank) -> None:
    bearer, most = await bank.key(limits=Limits(concurrency=2)), 0

    def script(request: Request) -> list[Step]:
        async def note() -> None:
            nonlocal most
            most = max(most, served.engine.num_open)
            await asyncio.sleep(0.02)

        return [note, *spoken(request, (65, 66, 67))]

    served.engine.script = script
    bodies = [chat(str(i), stream=bool(i % 2), max_tokens=3) for i in range(8)]
    # A long body, whose budgets are checked before it is read.
    bodies[7]["padding"] = "x" * 40_000
    replies = await asyncio.gather(*(served.post(CHAT, body, bearer) for body in bodies))
    assert [reply.status_code for reply in replies] == [200] * 8
    assert most == 2
    assert await bank.spent() > 0


async def test_over_http_a_full_queue_is_a_429_with_a_delay(served: Served, bank: Bank) -> None:
    served.configure(max_in_flight_waiting=1, in_flight_wait_s=0.1)
    bearer, go = await bank.key(limits=Limits(concurrency=1)), asyncio.Event()
    served.engine.script = lambda request: [go.wait, *spoken(request, (65,))]
    first = asyncio.create_task(served.post(CHAT, chat(), bearer))
    while not served.engine.num_open:
        await asyncio.sleep(0.01)
    refused = await asyncio.gather(*(served.post(CHAT, chat(), bearer) for _ in range(3)))
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in refused} == {(429, "rate_limit_exceeded")}
    assert all(reply.headers["retry-after"] for reply in refused)
    go.set()
    assert (await first).status_code == 200
