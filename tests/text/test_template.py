"""Templates of checkpoints."""

from __future__ import annotations

import json

import jinja2
import pytest
import tokenizers

from quicksilver.errors import InvalidRequest
from quicksilver.text.chat import ChatTemplate, Message, ToolCall
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from tests.support.fakes import ByteTokenizer, tokenizer_json


def render(source: str, content: str = "hi") -> str:
    tokenizer = ByteTokenizer()
    return tokenizer.decode(ChatTemplate.from_source(tokenizer, source).render([Message("user", content)]).ids)


def test_template_gets_arguments_as_values_and_tokens_by_name() -> None:
    number = "{% for value in messages[0].tool_calls[0].function.arguments.values() %}{{ value + 1 }}{% endfor %}"
    source = "{{ bos_token }}{% generation %}" + number + "{% endgeneration %}"
    spec = Vocabulary(json.dumps(tokenizer_json()), 273, (2,), template_tokens={"bos_token": "<|im_start|>"})
    template = ChatTemplate.from_source(Tokenizer(spec), source)
    ids = template.render([Message("assistant", tool_calls=(ToolCall("f", '{"n": 41}'),))]).ids
    assert ids == (1, *ByteTokenizer().encode("42"))


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


LING = (
    "{% set thinking_option = 'off' %}\n{{- '<role>SYSTEM</role>' }}"
    "{{- 'detailed thinking ' + thinking_option + '<|role_end|>' }}{{ messages[0].content }}"
)


@pytest.mark.parametrize(("effort", "switch"), [("none", "off"), ("high", "on")])
def test_the_thinking_switch_of_llada2_follows_the_effort(effort: str, switch: str) -> None:
    tokenizer = ByteTokenizer()
    template = ChatTemplate.from_source(tokenizer, LING)
    assert template.can_think
    text = tokenizer.decode(template.render([Message("user", "hi")], effort=effort).ids)
    assert text == f"<role>SYSTEM</role>detailed thinking {switch}<|role_end|>hi"


def test_a_template_without_a_switch_cannot_think() -> None:
    assert not ChatTemplate.from_source(ByteTokenizer(), "detailed thinking off{{ messages[0].content }}").can_think
