"""response_format: JSON objects, schemas, expressions and grammars, and the check before the last chunk."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.source import FormatKind, Policy, ResponseFormat
from tests.server.conftest import Served, chat, events, says

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
VALID, INVALID = '{"name": "Ada", "age": 36}', '{"name": "Ada"}'


def schema_format(schema: object = SCHEMA, **fields: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, **fields}}


def source_of(served: Served) -> ResponseFormat:
    source = served.grammars.seen[-1][0]
    assert isinstance(source, ResponseFormat)
    return source


@pytest.mark.parametrize(
    ("strict", "policy"), [(True, Policy.GUARANTEED), (False, Policy.VALIDATED), (None, Policy.VALIDATED)]
)
async def test_a_schema_constrains_and_validates_the_answer(served: Served, strict: object, policy: Policy) -> None:
    served.engine.script = says(VALID)
    reply = await served.post(CHAT, chat(response_format=schema_format(strict=strict)))
    assert reply.json()["choices"][0]["message"]["content"] == VALID
    assert source_of(served).policy is policy
    assert served.engine.seen[0].constraint is not None


async def test_an_answer_that_breaks_its_schema_has_no_finish_reason(served: Served) -> None:
    served.engine.script = says(INVALID)
    plain = await served.post(CHAT, chat(response_format=schema_format()))
    assert plain.json()["error"]["code"] == "output_invalid"
    streamed = await served.post(CHAT, chat(response_format=schema_format(), stream=True))
    assert "[DONE]" not in streamed.text
    assert '"finish_reason":"stop"' not in streamed.text


async def test_a_cut_answer_finishes_with_length_and_is_not_validated(served: Served) -> None:
    served.engine.script = says(VALID)
    reply = await served.post(CHAT, chat(response_format=schema_format(), max_tokens=5))
    assert reply.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("wanted", "kind", "answer"),
    [
        ({"type": "json_object"}, FormatKind.JSON_OBJECT, '{"a": 1}'),
        ({"type": "regex", "pattern": "[a-z]+"}, FormatKind.REGEX, "abc"),
        ({"type": "grammar", "grammar": 'start: "yes" | "no"'}, FormatKind.LARK, "yes"),
    ],
)
async def test_other_formats(served: Served, wanted: dict[str, str], kind: FormatKind, answer: str) -> None:
    served.engine.script = says(answer)
    reply = await served.post(CHAT, chat(response_format=wanted))
    assert reply.json()["choices"][0]["message"]["content"] == answer
    assert source_of(served).kind is kind


async def test_text_is_no_constraint(served: Served) -> None:
    await served.post(CHAT, chat(response_format={"type": "text"}))
    assert served.engine.seen[0].constraint is None


@pytest.mark.parametrize(
    "wanted",
    [
        schema_format({"type": "nonsense"}),
        schema_format({"type": "object", "properties": {"a": {"$ref": "https://example.com/s.json"}}}, strict=True),
        {"type": "regex", "pattern": "(unclosed"},
        {"type": "grammar", "grammar": "start: nothing_defined"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
    ],
)
async def test_formats_that_cannot_be_enforced_are_named(served: Served, wanted: dict[str, Any]) -> None:
    response = await served.post(CHAT, chat(response_format=wanted))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("response_format")
    assert served.engine.seen == []


async def test_thinking_comes_before_the_format(served: Served) -> None:
    served.engine.script = says(f"hmm</think>{VALID}")
    body = chat(response_format=schema_format(), reasoning_effort="low", stream=True)
    chunks = events(await served.post(CHAT, body))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == VALID
    assert source_of(served).thinking is not None


async def test_several_answers_share_one_compiled_grammar(served: Served) -> None:
    served.engine.script = says(VALID)
    await served.post(CHAT, chat(response_format=schema_format(), n=4))
    assert len(served.grammars.seen) == 1
    assert len({request.constraint for request in served.engine.seen}) == 1


async def test_responses_dialect_of_formats(served: Served) -> None:
    served.engine.script = says(VALID)
    wanted = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}
    reply = (await served.post("/v1/responses", {"model": "nano", "input": "x", "text": wanted})).json()
    assert reply["output"][0]["content"][0]["text"] == VALID
    assert reply["text"]["format"]["schema"] == SCHEMA


async def test_a_server_without_grammars_refuses_formats(served: Served) -> None:
    served.grammars = None  # type: ignore[assignment]
    served.configure()
    response = await served.post(CHAT, chat(response_format={"type": "json_object"}))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")


async def test_a_template_keeps_its_fixed_parts(served: Served) -> None:
    served.engine.script = says("Dear Ada, bye.")
    hole = {"type": "hole", "max_chars": 10}
    body = chat(response_format={"type": "template", "parts": ["Dear ", hole, ", bye."]})
    assert (await served.post("/v1/chat/completions", body)).status_code == 200
    assert served.engine.seen[0].constraint is not None
    wrong = {"type": "template", "parts": [{**hole, "min_chars": 11}]}
    refused = await served.post("/v1/chat/completions", chat(response_format=wrong))
    assert refused.json()["error"]["param"] == "response_format.parts"
