"""Which texts are refused, cut, encoded here, or encoded elsewhere."""

from __future__ import annotations

import msgspec
import pytest

from quicksilver.editing.edit_request import EditRequest, Snippet
from quicksilver.editing.prompts import edit_prompt, fim_prompt
from quicksilver.errors import ContextTooLong
from quicksilver.server.encoding.prompt_encoder import (
    CHARS_PER_TOKEN,
    POOL_CHARS,
    Encoded,
    EncodeEdit,
    EncodeFim,
    EncodeJob,
    EncodeTexts,
    PromptEncoder,
    RenderChat,
    encode,
    num_chars,
)
from quicksilver.text.chat import ChatTemplate, Message, PromptRequest, Tool, ToolCall
from tests.support.small_tokenizer import small_tokenizer

CONTEXT_LEN = 4096
MAX_CHARS = CHARS_PER_TOKEN * CONTEXT_LEN


class RecordingPool:
    def __init__(self) -> None:
        self.jobs: list[EncodeJob] = []

    async def encode(self, job: EncodeJob, tenant: str) -> Encoded:
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


EDIT = EditRequest("a.py", "be", "region", "after", history=("hist",), snippets=(Snippet("b.py", "code"),))
CHAT = PromptRequest((Message("user", "hi"),), effort="high")
JOBS: list[EncodeJob] = [EncodeTexts(("a", "bc")), RenderChat(CHAT), EncodeFim("ab", "c", 64), EncodeEdit(EDIT, 512)]


def test_each_kind_of_job_is_encoded_by_its_function() -> None:
    tokenizer = small_tokenizer().with_roles({"edit_open": 1, "edit_close": 2})
    template = ChatTemplate.own(tokenizer)
    texts, chat, fim, edit = (encode(job, tokenizer, template) for job in JOBS)
    assert texts.ids == (tuple(tokenizer.encode("a")), tuple(tokenizer.encode("bc")))
    assert chat.ids == (template.write(CHAT).ids,)
    assert chat.opens_thinking is template.write(CHAT).opens_thinking
    assert fim.ids == (tuple(fim_prompt(tokenizer, "ab", "c", 64)),)
    assert edit.ids == (tuple(edit_prompt(tokenizer, EDIT, 512)),)


@pytest.mark.parametrize("job", JOBS)
def test_jobs_are_read_as_they_were_sent(job: EncodeJob) -> None:
    assert msgspec.msgpack.Decoder(EncodeJob).decode(msgspec.msgpack.encode(job)) == job


def test_characters_of_every_text_are_counted() -> None:
    assert num_chars(EncodeTexts(("a", "bc"))) == 3
    assert num_chars(EncodeFim("ab", "c", 64)) == 3
    assert num_chars(EncodeEdit(EDIT, 512)) == len("beregionafterhistb.pycode")
    call = ToolCall("fn", "{}")
    message = Message("assistant", "text", reasoning="why", tool_calls=(call,), tool_call_id="id", name="me")
    tool = Tool("tool", "about", {"type": "object", "enum": ["ab", 1, None, {"key": "value"}]})
    expected = len("textwhyfn{}idmetoolabouttypeobjectenumabkeyvalue")
    assert num_chars(RenderChat(PromptRequest((message,), (tool,)))) == expected
