"""What an encoder does for each kind of job, and how much text a job has."""

from __future__ import annotations

import msgspec
import pytest

from quicksilver.editing.edit_request import EditRequest, Snippet
from quicksilver.editing.prompts import edit_prompt, fim_prompt
from quicksilver.server.encoding.jobs import EncodeEdit, EncodeFim, EncodeTexts, Job, RenderChat, num_chars, perform
from quicksilver.text.chat import ChatTemplate, Message, PromptRequest, Tool, ToolCall
from tests.support.small_tokenizer import small_tokenizer

EDIT = EditRequest("a.py", "be", "region", "after", history=("hist",), snippets=(Snippet("b.py", "code"),))
CHAT = PromptRequest((Message("user", "hi"),), effort="high")
JOBS: list[Job] = [EncodeTexts(("a", "bc")), RenderChat(CHAT), EncodeFim("ab", "c", 64), EncodeEdit(EDIT, 512)]


def test_each_kind_of_job_is_encoded_by_its_function() -> None:
    tokenizer = small_tokenizer().with_roles({"edit_open": 1, "edit_close": 2})
    template = ChatTemplate.own(tokenizer)
    texts, chat, fim, edit = (perform(job, tokenizer, template) for job in JOBS)
    assert texts.ids == (tuple(tokenizer.encode("a")), tuple(tokenizer.encode("bc")))
    assert chat.ids == (template.write(CHAT).ids,)
    assert chat.opens_thinking is template.write(CHAT).opens_thinking
    assert fim.ids == (tuple(fim_prompt(tokenizer, "ab", "c", 64)),)
    assert edit.ids == (tuple(edit_prompt(tokenizer, EDIT, 512)),)


@pytest.mark.parametrize("job", JOBS)
def test_jobs_are_read_as_they_were_sent(job: Job) -> None:
    assert msgspec.msgpack.Decoder(Job).decode(msgspec.msgpack.encode(job)) == job


def test_characters_of_every_text_are_counted() -> None:
    assert num_chars(EncodeTexts(("a", "bc"))) == 3
    assert num_chars(EncodeFim("ab", "c", 64)) == 3
    assert num_chars(EncodeEdit(EDIT, 512)) == len("beregionafterhistb.pycode")
    call = ToolCall("fn", "{}")
    message = Message("assistant", "text", reasoning="why", tool_calls=(call,), tool_call_id="id", name="me")
    tool = Tool("tool", "about", {"type": "object", "enum": ["ab", 1, None, {"key": "value"}]})
    expected = len("textwhyfn{}idmetoolabouttypeobjectenumabkeyvalue")
    assert num_chars(RenderChat(PromptRequest((message,), (tool,)))) == expected
