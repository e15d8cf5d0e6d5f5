"""Merging several answer streams: no item is lost and every stream is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from quicksilver.server.generation.job import merge_streams


class Source:
    """A stream of numbers that records whether it was closed."""

    def __init__(self, numbers: list[int], error: Exception | None = None) -> None:
        self._numbers = numbers
        self._error = error
        self.is_closed = False

    async def stream(self) -> AsyncGenerator[int, None]:
        try:
            for number in self._numbers:
                await asyncio.sleep(0)
                yield number
            if self._error:
                raise self._error
        finally:
            self.is_closed = True


@pytest.mark.parametrize("num_sources", [1, 2, 5])
async def test_every_item_comes_once_and_in_the_order_of_its_stream(num_sources: int) -> None:
    sources = [Source(list(range(i, i + 10))) for i in range(num_sources)]
    told = [pair async for pair in merge_streams([source.stream() for source in sources])]
    for i in range(num_sources):
        assert [item for index, item in told if index == i] == list(range(i, i + 10))
    assert all(source.is_closed for source in sources)


async def test_an_error_in_one_ends_all() -> None:
    sources = [Source([1, 2, 3]), Source([1], RuntimeError("broken")), Source(list(range(1000)))]
    with pytest.raises(RuntimeError, match="broken"):
        async for _ in merge_streams([source.stream() for source in sources]):
            pass
    assert all(source.is_closed for source in sources)


async def test_closing_the_whole_closes_every_part() -> None:
    sources = [Source(list(range(1000))) for _ in range(3)]
    merged = merge_streams([source.stream() for source in sources])
    await anext(merged)
    await merged.aclose()
    assert [source.is_closed for source in sources] == [True, True, True]


async def test_at_most_one_item_waits_for_a_slow_reader() -> None:
    seen = []

    async def eager() -> AsyncGenerator[int, None]:
        for number in range(100):
            seen.append(number)
            yield number

    merged = merge_streams([eager(), Source([]).stream()])
    await anext(merged)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(seen) <= 4
    await merged.aclose()
