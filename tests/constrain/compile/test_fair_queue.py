"""Who gets the next free thing: tenants in turn, first come first served within one, nobody who left."""

from __future__ import annotations

import asyncio

from quicksilver.constrain.compile.fair_queue import Turns


async def take(turns: Turns[str], tenant: str, served: list[str]) -> None:
    thing = await turns.take(tenant)
    served.append(tenant)
    await asyncio.sleep(0)
    turns.give(thing)


async def test_a_crowd_delays_only_itself() -> None:
    turns: Turns[str] = Turns()
    served: list[str] = []
    takers = [asyncio.create_task(take(turns, "crowd", served)) for _ in range(5)]
    await asyncio.sleep(0)
    takers.append(asyncio.create_task(take(turns, "guest", served)))
    await asyncio.sleep(0)
    turns.give("thing")
    await asyncio.gather(*takers)
    assert served[:2] == ["crowd", "guest"]
    assert served.count("crowd") == 5
    assert turns.num_free == 1


async def test_whoever_leaves_the_queue_loses_nothing_for_the_others() -> None:
    turns: Turns[str] = Turns()
    served: list[str] = []
    gone = asyncio.create_task(take(turns, "a", served))
    stays = asyncio.create_task(take(turns, "b", served))
    await asyncio.sleep(0)
    turns.give("thing")
    gone.cancel()
    await asyncio.gather(gone, stays, return_exceptions=True)
    assert served == ["b"]
    assert turns.num_free == 1
