"""UpdateMerger without a pool, and with one that has no result."""

from __future__ import annotations

import pytest

from quicksilver.editing.apply import ApplyRequest, Copy, Rewrite
from quicksilver.errors import Unavailable
from quicksilver.server.encoding.update_merger import UpdateMerger
from quicksilver.server.encoding.worker import CheckRewrite, MergeUpdate

REQUEST = ApplyRequest("def a():\n    return 1\n", "def a():\n    return 2")
PART = Rewrite("a = 1\n", "b = 2")


class FailingPool:
    """Jobs have no result, or raise `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def perform(self, job: MergeUpdate | CheckRewrite, tenant: str) -> None:
        if self._error is not None:
            raise self._error


async def test_without_a_pool_the_work_is_done_in_this_process() -> None:
    merger = UpdateMerger()
    assert await merger.merge(REQUEST, "") == (Copy("def a():\n    return 2\n"),)
    assert await merger.check(PART, "a = 1\nb = 2\n", "") == "a = 1\nb = 2\n"


async def test_a_failed_job_merges_nothing() -> None:
    merger = UpdateMerger(FailingPool())  # type: ignore[arg-type]
    assert await merger.merge(REQUEST, "") is None
    assert await merger.check(PART, "a = 1\nb = 2\n", "") is None


async def test_a_busy_pool_refuses_a_merge_and_drops_an_answer_that_it_cannot_check() -> None:
    merger = UpdateMerger(FailingPool(Unavailable("busy")))  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await merger.merge(REQUEST, "")
    assert await merger.check(PART, "a = 1\nb = 2\n", "") is None
