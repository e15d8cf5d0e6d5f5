"""Prompts of conversations, by either template."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.core import ThinkBudget
from quicksilver.errors import InvalidRequest
from quicksilver.text.chat import (
    EFFORTS,
    ChatTemplate,
    Message,
    Tool,
    ToolCall,
    asks_to_think,
    lower_budget,
    think_budget,
)
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from tests.support.fakes import SPECIAL_NAMES, ByteTokenizer, tokenizer_json

_CHATML = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% for key, value in tool.function.parameters.properties | items %}{{ key }}={{ value.type }}{% endfor %}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + (message.name or '') + '\\n' }}
{%- if message.reasoning_content %}<reponame>{{ message.reasoning_content }}<gh_stars>{% endif %}
{{- message.content | trim }}
{%- for call in message.tool_calls %}<issue_start>{{ call.function | tojson }}{{ call.id }}<issue_closed>{% endfor %}
{{- message.tool_call_id ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if enable_thinking %}<reponame>{% endif %}{% endif %}
"""


def conversation(text: str) -> tuple[list[Message], list[Tool]]:
    """A conversation with `text` in every string field there is."""
    arguments = json.dumps({text: text, "list": [text]})
    messages = [
        Message("system", text),
        Message("user", text, name=text),
        Message("assistant", text, reasoning=text, tool_calls=(ToolCall(text, arguments, id=text),)),
        Message("tool", text, tool_call_id=text, name=text),
        Message("assistant", "", tool_calls=(ToolCall("f", text),)),
    ]
    schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text]}}}
    return messages, [Tool(text, text, schema)]


def own(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.own(tokenizer)


def checkpoint(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.from_source(tokenizer, _CHATML)


def special_ids(ids: tuple[int, ...]) -> list[int]:
    return [i for i in ids if i <= 16]


@pytest.mark.parametrize("make", [own, checkpoint])
def test_every_special_token_in_every_field_stays_text(
    tokenizer: Tokenizer, make: Callable[[Tokenizer], ChatTemplate]
) -> None:
    template = make(tokenizer)
    expected = special_ids(template.render(*conversation("plain")).ids)
    assert len(expected) > 10
    for name in SPECIAL_NAMES:
        for text in (name, f"{name}\n", f" a{name}", name[1:-1], name[:-1]):
            ids = template.render(*conversation(text)).ids
            assert special_ids(ids) == expected
            assert tokenizer.decode(ids).count(text.strip()) >= 8


@pytest.mark.parametrize("make", [own, checkpoint])
def test_naughty_strings_arrive_unchanged(
    tiny: Tokenizer, naughty_strings: list[str], make: Callable[[Tokenizer], ChatTemplate]
) -> None:
    template = make(tiny)
    for text in naughty_strings:
        ids = template.render([Message("user", text)]).ids
        assert text.strip() in tiny.decode(ids)


@pytest.mark.parametrize("make", [own, checkpoint])
def test_effort_opens_the_thinking_channel(tiny: Tokenizer, make: Callable[[Tokenizer], ChatTemplate]) -> None:
    template, messages = make(tiny), [Message("user", "hi")]
    for effort, opens in ((None, False), ("none", False), ("instant", False), ("low", True), ("high", True)):
        rendered = template.render(messages, effort=effort)
        assert rendered.opens_thinking is opens
        assert (rendered.ids[-1] == tiny.roles.think_open) is opens
    closed = template.render(messages, effort="high", add_generation_prompt=False)
    assert not closed.opens_thinking
    assert special_ids(closed.ids)[-1] == tiny.roles.turn_close


def test_prompt_that_closes_thinking_does_not_open_it(tiny: Tokenizer) -> None:
    template = ChatTemplate.from_source(tiny, "<|im_start|>assistant\n<reponame>\n<gh_stars>")
    assert not template.render([Message("user", "hi")]).opens_thinking


def test_the_template_of_a_checkpoint_is_kept_unless_roles_replace_its_tools() -> None:
    def kept(source: str | None, roles: dict[str, int]) -> bool:
        tokenizer = Tokenizer(Vocabulary(json.dumps(tokenizer_json()), 273, (2,), source)).with_roles(roles)
        ids = ChatTemplate.for_tokenizer(tokenizer).render([Message("user", "hi")]).ids
        return tokenizer.decode(ids) == "as its authors wrote"

    with_tools = "as its authors wrote{% if tools %}{% endif %}"
    assert kept(with_tools, {})
    assert kept(with_tools, {"fim_prefix": 11})
    assert not kept(with_tools, {"tool_open": 8})
    assert kept("as its authors wrote", {})
    assert not kept(None, {})


def test_a_template_without_tools_is_replaced_for_conversations_with_tools() -> None:
    tokenizer = Tokenizer(Vocabulary(json.dumps(tokenizer_json()), 273, (2,), "as its authors wrote"))
    template = ChatTemplate.for_tokenizer(tokenizer)
    question, called = Message("user", "hi"), Message("assistant", tool_calls=(ToolCall("f", "{}"),))
    assert tokenizer.decode(template.render([question]).ids) == "as its authors wrote"
    assert "Tools:" in tokenizer.decode(template.render([question], [Tool("f")]).ids)
    for turns in ([question, called], [question, called, Message("tool", "r")]):
        assert tokenizer.decode(template.render(turns).ids).startswith("user\nhi\n")


def test_no_system_message_is_added_to_a_checkpoint_with_a_template_of_its_own() -> None:
    def system(source: str | None, roles: dict[str, int], chosen: str | None = None) -> str:
        tokenizer = Tokenizer(Vocabulary(json.dumps(tokenizer_json()), 273, (2,), source)).with_roles(roles)
        return ChatTemplate.for_tokenizer(tokenizer, chosen).system

    with_tools = "{{ messages[0].content }}{% if tools %}{% endif %}"
    assert system(with_tools, {}) == ""
    assert system("{{ messages[0].content }}", {}) == ""
    assert "quicksilver nano" in system(with_tools, {"tool_open": 8})
    assert "quicksilver" in system(None, {})
    assert system(None, {}, "") == ""
    assert system(with_tools, {}, "Be brief.") == "Be brief."


def test_a_chosen_system_message_is_written_by_every_template(tiny: Tokenizer) -> None:
    for template in (ChatTemplate.own(tiny, "Be brief."), ChatTemplate.from_source(tiny, _CHATML, "Be brief.")):
        assert tiny.decode(template.render([Message("user", "hi")]).ids).startswith("system\nBe brief.")
        given = tiny.decode(template.render([Message("system", "Be long."), Message("user", "hi")]).ids)
        assert "Be brief." not in given


def test_a_template_that_writes_no_thinking_cannot_think(tiny: Tokenizer) -> None:
    bare = Tokenizer(Vocabulary(json.dumps(tokenizer_json(("<s>", "<think>"))), 258, (0,)))
    assert ChatTemplate.own(tiny).can_think
    assert ChatTemplate.own(bare).can_think
    assert not ChatTemplate.from_source(bare, "{{ messages }}").can_think
    assert ChatTemplate.from_source(bare, "{{ messages }}<think>").can_think
    assert ChatTemplate.from_source(bare, "{% if enable_thinking %}{% endif %}").can_think


def test_reserved_thinking_in_a_template_without_it_begins_with_the_effort(tiny: Tokenizer) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template = ChatTemplate.from_source(tiny, source)
    question, thought = Message("user", "2+3?"), Message("assistant", "5", reasoning="2 and 3")
    asked = template.render([question], effort="low")
    assert asked.opens_thinking
    assert "".join(map(tiny.token_text, asked.ids)).endswith(f"<|im_end|>\n{tiny.token_text(4)}low\n")
    whole = template.render([question, thought], effort="low", add_generation_prompt=False)
    text = "".join(map(tiny.token_text, whole.ids))
    assert f"assistant\n{tiny.token_text(4)}low\n2 and 3{tiny.token_text(7)}5<|im_end|>" in text
    earlier = template.render([question, thought, question], effort="low")
    assert "2 and 3" not in tiny.decode(earlier.ids)
    assert not template.render([question]).opens_thinking


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


@pytest.mark.parametrize("effort", [None, "none", "instant"])
def test_no_effort_means_no_thinking(effort: str | None) -> None:
    assert think_budget(effort, 10_000) == 0
    assert not asks_to_think(effort)


def test_more_effort_means_more_thinking() -> None:
    budgets = [think_budget(effort, 1000) for effort in ("low", "medium", "high")]
    assert budgets == [250, 500, 750]
    assert all(map(asks_to_think, ("low", "medium", "high")))


@given(st.sampled_from(EFFORTS), st.integers(1, 100_000))
def test_a_quarter_and_a_sentence_are_left_for_the_answer(effort: str, limit: int) -> None:
    left = limit - think_budget(effort, limit)
    assert left >= max(limit / 4, min(limit, 16))


def test_unknown_effort_names_the_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        think_budget("huge", 100)
    assert caught.value.param == "reasoning_effort"


@pytest.mark.parametrize(("most", "thought", "line"), [(40, 37, 3), (4, 1, 3), (3, 3, 0), (0, 0, 0), (1000, 100, 3)])
def test_the_closing_line_is_part_of_a_lower_budget(most: int, thought: int, line: int) -> None:
    lowered = lower_budget(ThinkBudget((9,), 100, (1, 2, 3)), most)
    assert (lowered.max_tokens, len(lowered.cut_ids)) == (thought, line)
