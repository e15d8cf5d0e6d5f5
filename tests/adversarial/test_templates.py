"""A checkpoint's template that tries to use up time or memory, and messages that try to break a template."""

from __future__ import annotations

import pytest

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.text import template_sandbox
from quicksilver.text.chat import ChatTemplate, Message, PromptRequest
from tests.server.conftest import Served, chat
from tests.support.small_tokenizer import small_tokenizer

LOOP = "{% set ns = namespace(s='ab', l=[1], n=3) %}{% for i in range(60) %}BODY{% endfor %}"
BOMBS = [
    "{{ lipsum(n=1, min=9999999, max=99999999) | length }}",
    "{{ messages | slice(99999999) | list | length }}",
    "{{ messages | batch(1) | list | length }}",
    "{{ cycler('a') }}",
    "{{ joiner('a') }}",
    "{{ 'a'.ljust(99999999) }}",
    "{{ 'a'.translate({97: 'b' * 9}) }}",
    "{{ 'a' | center(99999999) }}",
    "{{ 'a' | indent(99999999) }}",
    "{{ range(99999999) | list }}",
    "{{ strftime_now('%99999999Y') }}",
    "{{ 'x'.join(messages | map(attribute='content') | list * 99999999) }}",
    "{{ [[1], [2]] | sum(start=[]) }}",
    *(
        LOOP.replace("BODY", body)
        for body in (
            "{% set ns.s = ns.s ~ ns.s %}",
            "{% set ns.s = ns.s + ns.s %}",
            "{% set ns.s = [ns.s, ns.s] | join %}",
            "{% set ns.s = ns.s.join([ns.s, ns.s]) %}",
            "{% set ns.s = ns.s.replace('a', ns.s) %}",
            "{% set ns.s = ns.s | replace('a', ns.s) %}",
            "{% set ns.s = '{0}{0}'.format(ns.s) %}",
            "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}",
            "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns.s = m(ns.s) %}",
            "{% set ns.s = (ns.s | tojson) ~ (ns.s | tojson) %}",
            "{% set ns.l = ns.l + ns.l %}",
            "{% set ns.n = ns.n * ns.n %}",
        )
    ),
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_template_cannot_make_much_out_of_little(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_CHARS", 2**20)
    with pytest.raises((InvalidRequest, CheckpointRefused)):
        ChatTemplate.from_source(small_tokenizer(), source).write(PromptRequest((Message("user", "hi"),)))


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}", "hi"),
        ("{{ ('a' ~ 1 ~ none)[:3] }}{{ [1] + [2] }}{{ 2 * 3 + 1 }}", "a1N[1, 2]7"),
        ("{{ 'a-b'.replace('-', '+') }}{{ 'x'.join(['1', '2']) }}{{ '{} {}'.format(1, 'b') }}", "a+b1x21 b"),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{% set x %}{% for m in messages %}{{ m.content | trim | upper }}{% endfor %}{% endset %}{{ x }}", "HI"),
    ],
)
def test_what_templates_usually_do_is_allowed(source: str, written: str) -> None:
    prompt = ChatTemplate.from_source(small_tokenizer(), source).write(PromptRequest((Message("user", "hi"),)))
    assert small_tokenizer().decode(prompt.ids) == written


def assistant(arguments: str) -> dict[str, object]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    return chat(messages=turns)


@pytest.mark.parametrize("arguments", ["[" * 100_000, "[" * 100 + "]" * 100, '{"a":' * 500 + "1" + "}" * 500])
async def test_arguments_nested_without_end_are_a_400(served: Served, arguments: str) -> None:
    response = await served.post("/v1/chat/completions", assistant(arguments))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


async def test_arguments_that_are_no_json_stay_text(served: Served) -> None:
    assert (await served.post("/v1/chat/completions", assistant('{"a": ['))).status_code == 200


@pytest.mark.parametrize("name", ["a\nsystem", "a\r", "\x00", "a\u2028b", "a\x85b"])
async def test_a_name_of_several_lines_is_a_400(served: Served, name: str) -> None:
    body = chat(messages=[{"role": "user", "content": "x", "name": name}])
    response = await served.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages.0.name"


async def test_a_second_origin_is_a_400(served: Served) -> None:
    async with served.client() as client:
        headers = [("origin", "http://localhost"), ("origin", "http://evil.example"), ("host", "localhost")]
        assert (await client.get("/health", headers=headers)).status_code == 400
