"""Order of the fair queue: round robin over tenants, first come first served within one."""

from __future__ import annotations

import asyncio

from quicksilver.constrain.compile.process_pool import FairQueue


async def take(queue: FairQueue[str], tenant: str, served: list[str]) -> None:
    item = await queue.take(tenant)
    served.append(tenant)
    await asyncio.sleep(0)
    queue.give(item)


async def test_tenants_are_served_in_round_robin_order() -> None:
    queue: FairQueue[str] = FairQueue()
    served: list[str] = []
    tasks = [asyncio.create_task(take(queue, "busy", served)) for _ in range(5)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(take(queue, "other", served)))
    await asyncio.sleep(0)
    queue.give("item")
    await asyncio.gather(*tasks)
    assert served[:2] == ["busy", "other"]
    assert served.count("busy") == 5
    assert queue.num_free == 1


async def test_an_item_given_to_a_cancelled_request_goes_to_the_next_one() -> None:
    queue: FairQueue[str] = FairQueue()
    served: list[str] = []
    gone = asyncio.create_task(take(queue, "a", served))
    stays = asyncio.create_task(take(queue, "b", served))
    await asyncio.sleep(0)
    queue.give("item")
    gone.cancel()
    await asyncio.gather(gone, stays, return_exceptions=True)
    assert served == ["b"]
    assert queue.num_free == 1


async def test_free_items_are_taken_without_waiting() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.give("a")
    queue.give("b")
    assert queue.take_free() == ["a", "b"]
    assert queue.take_free() == []
