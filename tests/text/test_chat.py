from __future__ import annotations

import json
from collections.abc import Callable

import jinja2
import pytest
import tokenizers

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.text import template_sandbox
from quicksilver.text.chat import ChatTemplate, Message, Tool, ToolCall
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


def test_bare_checkpoint_is_told_how_to_call(tiny: Tokenizer) -> None:
    bare = ByteTokenizer()
    messages = [Message("assistant", tool_calls=(ToolCall("f", "{}"),))]
    text = bare.decode(ChatTemplate.own(bare).render(messages, [Tool("f")], effort="high").ids)
    assert "To call a tool, write <tool_call>" in text
    assert '<tool_call>{"name": "f", "arguments": {}}</tool_call>' in text
    assert "To call" not in tiny.decode(ChatTemplate.own(tiny).render(messages, [Tool("f")]).ids)


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


def test_checkpoint_with_tools_in_its_template_speaks_for_itself() -> None:
    def kept(source: str | None, roles: dict[str, int]) -> bool:
        tokenizer = Tokenizer(Vocabulary(json.dumps(tokenizer_json()), 273, (2,), source)).with_roles(roles)
        ids = ChatTemplate.for_tokenizer(tokenizer).render([Message("user", "hi")]).ids
        return tokenizer.decode(ids) == "as its authors wrote"

    with_tools = "as its authors wrote{% if tools %}{% endif %}"
    assert kept(with_tools, {})
    assert kept(with_tools, {"fim_prefix": 11})
    assert not kept(with_tools, {"tool_open": 8})
    assert not kept("as its authors wrote", {})
    assert not kept(None, {})


def test_model_without_turn_tokens_cannot_chat() -> None:
    tokenizer = Tokenizer(Vocabulary(json.dumps(tokenizer_json(("<s>",))), 257, (0,)))
    with pytest.raises(InvalidRequest, match="turn tokens"):
        ChatTemplate.for_tokenizer(tokenizer).render([Message("user", "hi")])


def test_template_gets_arguments_as_values_and_tokens_by_name() -> None:
    number = "{% for value in messages[0].tool_calls[0].function.arguments.values() %}{{ value + 1 }}{% endfor %}"
    source = "{{ bos_token }}{% generation %}" + number + "{% endgeneration %}"
    spec = Vocabulary(json.dumps(tokenizer_json()), 273, (2,), template_tokens={"bos_token": "<|im_start|>"})
    template = ChatTemplate.from_source(Tokenizer(spec), source)
    ids = template.render([Message("assistant", tool_calls=(ToolCall("f", '{"n": 41}'),))]).ids
    assert ids == (1, *ByteTokenizer().encode("42"))


def render(source: str, content: str = "hi") -> str:
    tokenizer = ByteTokenizer()
    return tokenizer.decode(ChatTemplate.from_source(tokenizer, source).render([Message("user", content)]).ids)


def test_harmless_messages_come_out_as_from_plain_jinja(smollm2: Tokenizer) -> None:
    """Quoting, ticks and the sandbox leave no trace in the ids."""
    messages = [Message("user", " <b>hi</b>\n\n"), Message("assistant", "12 < 13"), Message("user", "so?")]
    source = smollm2.chat_template
    assert source is not None
    turns = [{"role": message.role, "content": message.content} for message in messages]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(source).render(messages=turns, add_generation_prompt=True)
    expected = tokenizers.Tokenizer.from_str(smollm2.to_json()).encode(text).ids
    assert list(ChatTemplate.from_source(smollm2, source).render(messages).ids) == expected


def test_refusal_of_the_template_is_the_callers_error() -> None:
    with pytest.raises(InvalidRequest, match=r"^roles must alternate <s>$") as caught:
        render("{{ raise_exception('roles must alternate ' + messages[0].content) }}", "<s>")
    assert caught.value.param == "messages"


def test_template_may_ask_for_the_date_and_numbers() -> None:
    assert render("{{ strftime_now('%Y')[:2] }} {{ 7 % 4 * 2 }} {{ '{:>3}'.format(1) }}") == "20 6   1"
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


_ESCAPES = [
    "{{ messages.__class__.__mro__ }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ 'a' * 1000000000 }}",
    "{{ 2 ** 100000000 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ 'a'.center(1000000000) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in range(1000000) %}{% endfor %}",
    "{{ nothing.here }}",
    "{% include 'file' %}",
]


@pytest.mark.parametrize("source", _ESCAPES)
def test_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot write these messages"):
        render(source)


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a' | center(9) }}", "{{ x", "{{ '" + "(" * 3 + "' | nothing }}"])
def test_template_that_does_not_compile_is_refused(source: str) -> None:
    with pytest.raises(CheckpointRefused, match="chat template"):
        render(source)


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(template_sandbox, "MAX_CHARS", 1000)


_RANGES = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"


@pytest.mark.usefixtures("short_time")
def test_template_that_lingers_is_cut_off() -> None:
    with pytest.raises(InvalidRequest, match=r"more than 0\.05 seconds"):
        render(_RANGES)


@pytest.mark.usefixtures("short_time")
def test_template_that_writes_without_end_is_cut_off() -> None:
    with pytest.raises(InvalidRequest, match="more than 1000 characters"):
        render("{% for a in range(9999) %}{{ a }} {% endfor %}")
