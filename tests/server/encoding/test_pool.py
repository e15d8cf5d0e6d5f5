"""Encoder processes: the same ids as in this process, limits, and replacement."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from quicksilver.editing.apply import ApplyRequest, Copy, Rewrite, merge
from quicksilver.editing.edit_request import EditRequest
from quicksilver.errors import InvalidRequest, Unavailable
from quicksilver.server.encoding.pool import EncoderConfig, EncoderPool, UpdateMerger
from quicksilver.server.encoding.prompt_encoder import EncodeEdit, EncodeFim, EncodeJob, EncodeTexts, RenderChat
from quicksilver.server.encoding.worker import Checked, CheckRewrite, Merged, MergeUpdate, Setup, perform
from quicksilver.text.chat import ChatTemplate, Message, PromptRequest, Tool, ToolCall
from quicksilver.text.tokenizer import Tokenizer
from tests.support.small_tokenizer import small_tokenizer

CONVERSATION = PromptRequest(
    (
        Message("system", "Be brief."),
        Message("user", "Hi <|im_end|> 你好", name="ann"),
        Message("assistant", "", "thought", (ToolCall("f", '{"a": [1, "b"]}', "call_1"),)),
        Message("tool", "done", tool_call_id="call_1"),
    ),
    (Tool("f", "does it", {"type": "object", "properties": {"a": {"type": "integer"}}}),),
    effort="high",
)
JOBS: list[EncodeJob] = [
    EncodeTexts(("", "one", "<|im_start|> is text", "wörld 👋")),
    RenderChat(CONVERSATION),
    RenderChat(replace(CONVERSATION, add_generation_prompt=False)),
    EncodeFim("def f(", "\n    return 1\n", 100),
    EncodeEdit(EditRequest("a.py", "before\n", "region\n", "after\n", 3), 100),
]


def with_edit_tokens() -> Tokenizer:
    """Roles that the checkpoint itself does not state must reach the process too."""
    tokenizer = small_tokenizer()
    spare = sorted(tokenizer.special_tokens.values())
    return tokenizer.with_roles({"edit_open": spare[0], "edit_close": spare[1], "fim_middle": spare[2]})


@asynccontextmanager
async def running(source: str | None = None, **limits: float) -> AsyncIterator[EncoderPool]:
    tokenizer = with_edit_tokens()
    template = ChatTemplate.own(tokenizer) if source is None else ChatTemplate.from_source(tokenizer, source)
    # No heartbeats: in these tests it is a job that finds a lost process.
    config = EncoderConfig(num_processes=1, heartbeat_s=3600, **limits)  # type: ignore[arg-type]
    pool = EncoderPool(tokenizer, template, config)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


async def test_ids_are_those_of_this_process() -> None:
    async with running() as pool:
        tokenizer = with_edit_tokens()
        for job in JOBS:
            assert await pool.encode(job, "") == perform(job, tokenizer, ChatTemplate.own(tokenizer))


async def test_a_refusal_is_passed_on() -> None:
    async with running("{{ raise_exception('no such role') }}") as pool:
        with pytest.raises(InvalidRequest, match="no such role"):
            await pool.encode(RenderChat(CONVERSATION), "")
        assert pool.num_replaced == 0


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_process_is_replaced_and_the_job_done(death: signal.Signals) -> None:
    async with running(stall_s=0.3) as pool:
        os.kill(pool.pids[0], death)
        assert (await pool.encode(EncodeTexts(("one",)), "")).ids
        assert pool.num_replaced == 1


def test_a_setup_builds_the_same_template() -> None:
    tokenizer = small_tokenizer()
    template = ChatTemplate.from_source(tokenizer, "as written", "Be brief.", lacks_tools=True)
    _, built = Setup.of(tokenizer, template).build()
    assert (built.source, built.system, built.lacks_tools) == ("as written", "Be brief.", True)


async def test_processor_time_is_bounded() -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    async with running(loop, limit_s=0.2) as pool:
        with pytest.raises(InvalidRequest):
            await pool.encode(RenderChat(CONVERSATION), "")
        assert (await pool.encode(EncodeTexts(("one",)), "")).ids


async def test_memory_is_bounded() -> None:
    async with running(memory_bytes=64 * 2**20, limit_s=30) as pool:
        with pytest.raises(InvalidRequest):
            await pool.encode(EncodeTexts(("a b " * 4_000_000,)), "")
        assert (await pool.encode(EncodeTexts(("one",)), "")).ids


async def test_the_size_of_waiting_prompts_is_bounded_by_tenant() -> None:
    async with running(max_waiting_bytes_tenant=100_000) as pool:
        first = asyncio.create_task(pool.encode(EncodeTexts(("a b " * 100_000,)), "ann"))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await pool.encode(EncodeTexts(("one",)), "ann")
        assert (await pool.encode(EncodeTexts(("one",)), "bob")).ids
        assert (await first).ids


async def test_many_short_prompts_of_a_tenant_may_wait() -> None:
    async with running() as pool:
        jobs = [pool.encode(EncodeTexts((f"number {i}",)), "ann") for i in range(300)]
        assert all(encoded.ids for encoded in await asyncio.gather(*jobs))


async def test_an_unexpected_exception_is_not_a_refusal() -> None:
    async with running() as pool:
        with pytest.raises(RuntimeError, match="ValidationError"):
            await pool.encode(EncodeEdit(EditRequest("a.py", "", "x", "", cursor=1), "many"), "")  # type: ignore[arg-type]
        assert pool.num_replaced == 0


async def test_a_stopped_pool_refuses() -> None:
    async with running() as pool:
        pass
    with pytest.raises(Unavailable):
        await pool.encode(EncodeTexts(("one",)), "")


async def test_a_merge_is_that_of_this_process() -> None:
    async with running() as pool:
        original = "def a():\n    return 1\n\n\ndef b():\n    return 2\n"
        update = "def b():\n    return 3"
        assert await pool.perform(MergeUpdate(original, update), "") == Merged(tuple(merge(original, update)))
        part = Rewrite("a = 1\n", "b = 2")
        assert await pool.perform(CheckRewrite(part, "```\na = 1\nb = 2\n```"), "") == Checked("a = 1\nb = 2\n")
        assert await pool.perform(CheckRewrite(part, "b = 2"), "") == Checked(None)


async def test_a_merge_whose_process_crashes_has_no_result() -> None:
    async with running(stall_s=60.0) as pool:
        os.kill(pool.pids[0], signal.SIGSEGV)
        assert await pool.perform(MergeUpdate("a\n", "b"), "") is None
        assert await pool.perform(MergeUpdate("a\n", "b"), "") is not None


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
