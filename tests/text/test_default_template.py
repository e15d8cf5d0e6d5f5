"""The default template."""

from __future__ import annotations

import json

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.text.chat import ChatTemplate, Message, Tool, ToolCall
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from tests.support.fakes import ByteTokenizer, tokenizer_json


def special_ids(ids: tuple[int, ...]) -> list[int]:
    return [i for i in ids if i <= 16]


def test_own_template_writes_tools_calls_and_results(tiny: Tokenizer) -> None:
    messages = [
        Message("user", "weather?", name="Ann"),
        Message("assistant", tool_calls=(ToolCall("get", '{"city":"Köln"}'),)),
        Message("tool", "sunny", name="get"),
    ]
    rendered = ChatTemplate.own(tiny).render(messages, [Tool("get", "looks", {"type": "object"})])
    text = tiny.decode(rendered.ids)
    assert '\n\nTools:\n{"name": "get", "description": "looks", "parameters": {"type": "object"}}\n' in text
    assert 'assistant\n{"name": "get", "arguments": {"city": "Köln"}}\n' in text
    assert "user name=Ann\nweather?\n" in text
    assert text.endswith("tool name=get\nsunny\nassistant\n")
    assert special_ids(rendered.ids) == [1, 2, 1, 2, 1, 8, 10, 2, 1, 2, 1]


def test_system_message_takes_the_place_of_our_own_line(tiny: Tokenizer) -> None:
    template = ChatTemplate.own(tiny)
    assert "quicksilver nano" in tiny.decode(template.render([Message("user", "hi")]).ids)
    text = tiny.decode(template.render([Message("system", "Be brief."), Message("user", "hi")]).ids)
    assert text.startswith("system\nBe brief.\nuser\nhi\n")


def test_no_system_turn_is_written_without_a_system_message_and_tools(tiny: Tokenizer) -> None:
    template = ChatTemplate.own(tiny, system="")
    assert tiny.decode(template.render([Message("user", "hi")]).ids) == "user\nhi\nassistant\n"
    assert tiny.decode(template.render([Message("user", "hi")], [Tool("f")]).ids).startswith("system\nTools:\n")


def test_bare_checkpoint_is_told_how_to_call(tiny: Tokenizer) -> None:
    bare = ByteTokenizer()
    messages = [Message("assistant", tool_calls=(ToolCall("f", "{}"),))]
    text = bare.decode(ChatTemplate.own(bare).render(messages, [Tool("f")], effort="high").ids)
    assert "To call a tool, write <tool_call>" in text
    assert '<tool_call>{"name": "f", "arguments": {}}</tool_call>' in text
    assert "To call" not in tiny.decode(ChatTemplate.own(tiny).render(messages, [Tool("f")]).ids)


def test_thoughts_are_kept_only_since_the_last_question(tiny: Tokenizer) -> None:
    messages = [
        Message("user", "q"),
        Message("assistant", "a", reasoning="old thought"),
        Message("user", "q2"),
        Message("assistant", "", reasoning="new thought", tool_calls=(ToolCall("f", "{}"),)),
        Message("tool", "r"),
    ]
    text = tiny.decode(ChatTemplate.own(tiny).render(messages).ids)
    assert "old thought" not in text
    assert "new thought" in text


def test_neighbouring_texts_are_encoded_as_one(smollm2: Tokenizer) -> None:
    ids = ChatTemplate.own(smollm2).render([Message("system", "s"), Message("user", "\n hi")]).ids
    turns = " ".join(map(str, ids)).split(" 1 ")
    assert turns[1] == " ".join(map(str, [*smollm2.encode("user\n\n hi"), 2, *smollm2.encode("\n")]))


def test_model_without_turn_tokens_cannot_chat() -> None:
    tokenizer = Tokenizer(Vocabulary(json.dumps(tokenizer_json(("<s>",))), 257, (0,)))
    with pytest.raises(InvalidRequest, match="turn tokens"):
        ChatTemplate.for_tokenizer(tokenizer).render([Message("user", "hi")])
