"""Jobs and merged answer streams: no piece is lost and every stream is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from quicksilver.accounts.identity import Identity
from quicksilver.accounts.records import Order
from quicksilver.core import DecodeParams, Delta, Request, Usage
from quicksilver.errors import EngineUnavailable, LedgerUnavailable
from quicksilver.server.generation import billing as billing_module
from quicksilver.server.generation.billing import Billing
from quicksilver.server.generation.job import ReplyJob, merge_streams
from quicksilver.server.generation.plan import AnswerRequest, plan_reply
from tests.server.conftest import HELLO, Served


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
    received = [pair async for pair in merge_streams([source.stream() for source in sources])]
    for i in range(num_sources):
        assert [item for index, item in received if index == i] == list(range(i, i + 10))
    assert all(source.is_closed for source in sources)


async def test_an_error_in_one_stream_closes_all() -> None:
    sources = [Source([1, 2, 3]), Source([1], RuntimeError("broken")), Source(list(range(1000)))]
    with pytest.raises(RuntimeError, match="broken"):
        async for _ in merge_streams([source.stream() for source in sources]):
            pass
    assert all(source.is_closed for source in sources)


async def test_closing_the_merged_stream_closes_every_stream() -> None:
    sources = [Source(list(range(1000))) for _ in range(3)]
    merged = merge_streams([source.stream() for source in sources])
    await anext(merged)
    await merged.aclose()
    assert [source.is_closed for source in sources] == [True, True, True]


async def test_at_most_one_item_is_queued_for_a_slow_reader() -> None:
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


def make_job(served: Served, num_answers: int = 1) -> ReplyJob:
    request = Request("", (1, 2, 3), DecodeParams(max_new_tokens=100))
    return ReplyJob(plan_reply("chatcmpl", "nano", [AnswerRequest(request)], num_answers), served.services)


async def test_collect_joins_every_answer(served: Served) -> None:
    async with make_job(served, num_answers=3) as job:
        await job.start()
        answers = await job.collect()
    assert [answer.content for answer in answers] == [HELLO] * 3
    num_tokens = len(HELLO.encode())
    assert job.usage() == Usage(3, 0, 3 * num_tokens)
    assert [finished.usage.completion_tokens for finished in job.finished] == [num_tokens] * 3


async def test_a_job_that_was_never_started_can_be_closed_twice(served: Served) -> None:
    job = make_job(served)
    await job.aclose()
    await job.aclose()
    assert served.engine.seen == []


async def test_closing_a_running_job_aborts_its_answers(served: Served) -> None:
    served.engine.script = lambda r: [Delta(r.id, (97,)), asyncio.Event().wait]
    job = make_job(served, num_answers=2)
    await job.start()
    assert await job.next_piece() is not None
    await job.aclose()
    assert (served.engine.num_open, served.engine.num_aborted) == (0, 2)


async def test_an_engine_that_refuses_fails_the_start_and_leaves_nothing_open(served: Served) -> None:
    served.engine.is_ready = False
    with pytest.raises(EngineUnavailable):
        await make_job(served).start()


async def test_until_the_cached_share_is_known_the_prompt_counts_as_cached(served: Served) -> None:
    job = make_job(served)
    assert job.usage() == Usage(3, 3, 0)


class OutageAccounts:
    """A ledger that cannot be written for a while."""

    needs_restart = False

    def __init__(self) -> None:
        self.is_writable = False
        self.written: list[int] = []

    async def checkpoint(self, request_id: str, num_tokens: int, num_cached: int) -> None:
        if not self.is_writable:
            raise LedgerUnavailable("no database")
        self.written.append(num_tokens)

    async def is_live(self, identity: Identity) -> bool:
        return True


async def checkpointed(billing: Billing, num_tokens: int) -> None:
    billing.checkpoint(Usage(10, 0, num_tokens))
    assert billing._checkpoint is not None
    await asyncio.wait([billing._checkpoint])


def make_billing(accounts: OutageAccounts) -> Billing:
    return Billing(accounts, Identity("k", "o/p/k", frozenset()), Order("r", "nano", 10, 20), None)  # type: ignore[arg-type]


async def test_a_stream_continues_while_the_ledger_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_module, "KEY_CHECK_S", 0.0)
    accounts = OutageAccounts()
    billing = make_billing(accounts)
    for num_tokens in range(1, 6):
        await checkpointed(billing, num_tokens)
    accounts.is_writable = True
    await checkpointed(billing, 6)
    await checkpointed(billing, 7)
    assert accounts.written == [6, 7]


async def test_a_stream_ends_with_the_error_of_a_long_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_module, "KEY_CHECK_S", 0.0)
    monkeypatch.setattr(billing_module, "OUTAGE_S", -1.0)
    billing = make_billing(OutageAccounts())
    await checkpointed(billing, 1)
    with pytest.raises(LedgerUnavailable):
        billing.checkpoint(Usage(10, 0, 2))


async def test_a_complete_stream_waits_for_the_end_of_an_outage() -> None:
    accounts = OutageAccounts()
    waiting = asyncio.create_task(make_billing(accounts).wait_until_writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    accounts.is_writable = True
    await asyncio.wait_for(waiting, 30)


async def test_the_wait_for_the_ledger_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_module, "OUTAGE_S", 0.0)
    accounts = OutageAccounts()
    await asyncio.wait_for(make_billing(accounts).wait_until_writable(), 30)
    assert not accounts.is_writable
