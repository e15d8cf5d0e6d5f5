"""Tags of tool calls, found by rendering the loaded template."""

from __future__ import annotations

from quicksilver.constrain.source import Layout, ToolTags
from quicksilver.server.generation.tool_tags import TOOL_CLOSE, TOOL_OPEN, read_tool_tags
from quicksilver.text.chat import ChatTemplate
from tests.support.small_tokenizer import small_tokenizer

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
