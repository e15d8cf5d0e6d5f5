"""The validator of finished output, and refusals of the grammar compiler."""

from __future__ import annotations

import pytest

from quicksilver.constrain.source import FormatKind, GrammarSource, Layout, ResponseFormat, ToolTags
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar, InvalidRequest
from quicksilver.server.generation.grammar import (
    TOOL_CLOSE,
    TOOL_OPEN,
    OutputValidator,
    compile_grammar,
    read_tool_tags,
)
from quicksilver.text.chat import ChatTemplate
from tests.support.small_tokenizer import small_tokenizer

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SOURCE = ResponseFormat(FormatKind.JSON_OBJECT)


@pytest.mark.parametrize(
    ("content", "calls", "is_valid"),
    [
        ('{"n": 1}', [], True),
        ('{"n": "x"}', [], False),
        ("", [], False),
        ("", [("f", '{"n": 1}')], True),
        ("", [("f", '{"n": "x"}')], False),
        ("", [("other", "anything")], True),
        ('{"n": "x"}', [("f", '{"n": 1}')], False),
    ],
)
def test_content_and_calls_satisfy_their_schemas(content: str, calls: list[tuple[str, str]], is_valid: bool) -> None:
    validator = OutputValidator(NUMBER, {"f": NUMBER})
    assert (validator.find_fault(content, calls) is None) is is_valid


def test_a_required_call_is_required() -> None:
    validator = OutputValidator(requires_call=True)
    assert "required" in (validator.find_fault("text", []) or "")
    assert validator.find_fault("", [("f", "{}")]) is None


class Refusing:
    def __init__(self, param: str | None) -> None:
        self._param = param

    async def compile(self, source: GrammarSource, tenant: str) -> ConstraintSpec:
        raise InvalidGrammar("`uniqueItems` cannot be enforced", param=self._param)


@pytest.mark.parametrize(("given", "named"), [(None, "tools"), ("tools.0.function", "tools.0.function")])
async def test_a_refusal_names_the_request_field(given: str | None, named: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        await compile_grammar(SOURCE, Refusing(given), "tenant", "tools")
    assert caught.value.param == named


async def test_without_a_compiler_a_grammar_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        await compile_grammar(SOURCE, None, "tenant", "response_format")
    assert (caught.value.status, caught.value.param) == (400, "response_format")


PADDED = (
    "{%- if tools %}<|im_start|>system\nCall with <tool_call></tool_call>.<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' }}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "{{ '\\n</tool_call>' }}{% endfor %}<|im_end|>\n{% endfor %}"
)


def test_our_own_template_has_no_padding() -> None:
    tokenizer = small_tokenizer()
    roles = tokenizer.roles
    assert roles.tool_open is not None
    assert roles.tool_close is not None
    tags = read_tool_tags(ChatTemplate.own(tokenizer), tokenizer)
    assert tags == ToolTags(roles.tool_open, roles.tool_close, layout=Layout.SPACED)


def test_padding_and_separators_are_those_of_the_template() -> None:
    tokenizer = small_tokenizer()
    tags = read_tool_tags(ChatTemplate.from_source(tokenizer, PADDED), tokenizer)
    assert (tags.padding, tags.between, tags.layout) == ("\n", "\n", Layout.SPACED)


def test_a_template_that_writes_no_calls_gets_the_plain_form() -> None:
    tokenizer = small_tokenizer()
    silent = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ tools and '' }}"
    )
    strict = "{{ raise_exception('only one turn') }}"
    for source in (silent, strict):
        tags = read_tool_tags(ChatTemplate.from_source(tokenizer, source), tokenizer)
        assert (tags.padding, tags.between) == ("", "")


def test_a_model_without_tokens_for_tags_writes_them_as_text() -> None:
    plain = small_tokenizer(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    assert read_tool_tags(ChatTemplate.own(plain), plain) == ToolTags(TOOL_OPEN, TOOL_CLOSE)


def test_gemmas_calls_are_json_between_its_own_tags() -> None:
    """Its template writes arguments in a notation of its own; ours are JSON, without spaces as there."""
    names = ("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|im_end|>")
    tokenizer = small_tokenizer(names)
    source = (
        "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<|tool_call>call:{{ c.function.name }}{a:1}<tool_call|>{% endfor %}<turn|>\n{% endfor %}{{ tools and '' }}"
    )
    tags = read_tool_tags(ChatTemplate.from_source(tokenizer, source), tokenizer)
    assert (tags.open, tags.close) == (258, 259)
    assert (tags.padding, tags.between, tags.layout) == ("", "", Layout.COMPACT)
