"""Which texts are refused, cut, encoded here, or encoded elsewhere."""

from __future__ import annotations

import pytest

from quicksilver.editing.edit_request import EditRequest
from quicksilver.errors import ContextTooLong
from quicksilver.server.encoding.jobs import Encoded, EncodeFim, Job
from quicksilver.server.encoding.prompt_encoder import CHARS_PER_TOKEN, POOL_CHARS, PromptEncoder
from quicksilver.text.chat import ChatTemplate, Message, PromptRequest, Tool, ToolCall
from tests.support.small_tokenizer import small_tokenizer

CONTEXT_LEN = 4096
MAX_CHARS = CHARS_PER_TOKEN * CONTEXT_LEN


class RecordingPool:
    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def encode(self, job: Job, tenant: str) -> Encoded:
        self.jobs.append(job)
        return Encoded(((1,),))


def encoder(pool: RecordingPool, source: str | None = None) -> PromptEncoder:
    tokenizer = small_tokenizer()
    template = ChatTemplate.own(tokenizer) if source is None else ChatTemplate.from_source(tokenizer, source)
    return PromptEncoder(tokenizer, template, CONTEXT_LEN, pool)  # type: ignore[arg-type]


def conversation(text: str) -> PromptRequest:
    return PromptRequest((Message("user", text),))


async def test_short_texts_are_encoded_here_and_long_ones_in_the_pool() -> None:
    pool = RecordingPool()
    assert await encoder(pool).encode(["one"], "", "prompt") == [tuple(small_tokenizer().encode("one"))]
    await encoder(pool).render(conversation("one"), "")
    assert pool.jobs == []
    await encoder(pool).encode(["x" * (POOL_CHARS + 1)], "", "prompt")
    await encoder(pool).render(conversation("x" * POOL_CHARS), "")
    assert len(pool.jobs) == 1
    await encoder(pool).render(conversation("x" * (POOL_CHARS + 1)), "")
    assert len(pool.jobs) == 2


async def test_a_checkpoints_template_never_runs_here() -> None:
    pool = RecordingPool()
    await encoder(pool, "{{ messages[0].content }}").render(conversation("hi"), "")
    assert len(pool.jobs) == 1


LONG = "x" * MAX_CHARS


@pytest.mark.parametrize(
    "request_",
    [
        conversation(LONG + "x"),
        PromptRequest((Message("assistant", reasoning=LONG + "x"),)),
        PromptRequest((Message("assistant", tool_calls=(ToolCall("f", LONG + "x"),)),)),
        PromptRequest((Message("user", "x"),), (Tool("f", parameters={"a": [{LONG: 1}]}),)),
    ],
)
async def test_long_conversations_are_refused_unread(request_: PromptRequest) -> None:
    pool = RecordingPool()
    with pytest.raises(ContextTooLong) as caught:
        await encoder(pool).render(request_, "")
    assert caught.value.param == "messages"
    assert pool.jobs == []


async def test_long_texts_are_refused_together() -> None:
    pool = RecordingPool()
    with pytest.raises(ContextTooLong):
        await encoder(pool).encode([LONG, "x"], "", "prompt")
    await encoder(pool).encode([LONG], "", "prompt")
    assert len(pool.jobs) == 1


async def test_code_around_the_cursor_is_cut_and_not_refused() -> None:
    pool = RecordingPool()
    await encoder(pool).encode_fim("a" * MAX_CHARS + "b", "c" + "d" * MAX_CHARS, 100, "")
    (job,) = pool.jobs
    assert isinstance(job, EncodeFim)
    assert len(job.prefix) + len(job.suffix) == MAX_CHARS
    assert (job.prefix[-1], job.suffix[0]) == ("b", "c")
    await encoder(pool).encode_edit(EditRequest("a", LONG, "region", LONG), 100, "")
    with pytest.raises(ContextTooLong):
        await encoder(pool).encode_edit(EditRequest("a", "", LONG + "x", ""), 100, "")
