"""response_format: JSON objects, schemas, expressions and grammars, and the check before the last chunk.

Tools and tool_choice in both APIs: optional and required calls, and calls in replies.
"""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.source import FormatKind, Policy, ResponseFormat, ToolCallFormat, ToolChoice
from tests.server.conftest import Served, chat, events, says
from tests.support.small_tokenizer import small_tokenizer

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


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"type": "regex", "pattern": "(unclosed"}, "pattern"),
        ({"type": "grammar", "grammar": "start: nothing_defined"}, "grammar"),
        ({"type": "grammar", "grammar": "start: /(unclosed/"}, "grammar"),
    ],
)
async def test_a_malformed_grammar_is_named_by_its_field(served: Served, wanted: dict[str, Any], field: str) -> None:
    error = (await served.post(CHAT, chat(response_format=wanted))).json()["error"]
    assert (error["param"], error["message"].split()[0]) == (f"response_format.{field}", f"`{field}`")


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


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather now", "parameters": CITY}},
    {"type": "function", "function": {"name": "time", "parameters": CITY, "strict": True}},
]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
SECOND = '<tool_call>{"name": "time", "arguments": {"city": "Rome"}}</tool_call>'


def plan_of(served: Served) -> ToolCallFormat:
    source = served.grammars.seen[-1][0]
    assert isinstance(source, ToolCallFormat)
    return source


async def test_a_call_comes_back_without_content(served: Served) -> None:
    served.engine.script = says(CALL)
    choice = (await served.post(CHAT, chat(tools=TOOLS))).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    call = choice["message"]["tool_calls"][0]
    assert (call["index"], call["type"]) == (0, "function")
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert call["id"].startswith("chatcmpl-tool-")
    assert served.engine.seen[0].constraint is not None


async def test_parallel_calls_have_an_index_each(served: Served) -> None:
    served.engine.script = says(CALL + SECOND)
    message = (await served.post(CHAT, chat(tools=TOOLS))).json()["choices"][0]["message"]
    assert [(c["index"], c["function"]["name"]) for c in message["tool_calls"]] == [(0, "weather"), (1, "time")]


async def test_streamed_calls_have_id_and_name_once_and_arguments_in_pieces(served: Served) -> None:
    served.engine.script = says(CALL + SECOND, piece_len=3)
    chunks = events(await served.post(CHAT, chat(tools=TOOLS, stream=True)))
    pieces = [p for c in chunks for p in c["choices"][0]["delta"].get("tool_calls", [])]
    for index, name in enumerate(("weather", "time")):
        own = [p for p in pieces if p["index"] == index]
        assert own[0]["function"]["name"] == name
        assert own[0]["id"].startswith("chatcmpl-tool-")
        assert all("id" not in p and "name" not in p["function"] for p in own[1:])
        assert "".join(p["function"]["arguments"] for p in own).startswith('{"city": "')
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_text_before_a_call_is_content(served: Served) -> None:
    served.engine.script = says("Let me look. " + CALL)
    message = (await served.post(CHAT, chat(tools=TOOLS))).json()["choices"][0]["message"]
    assert message["content"].strip() == "Let me look."
    assert len(message["tool_calls"]) == 1


async def test_without_parallel_calls_the_answer_ends_at_the_second(served: Served) -> None:
    served.engine.script = says(CALL + SECOND)
    body = chat(tools=TOOLS, parallel_tool_calls=False)
    message = (await served.post(CHAT, body)).json()["choices"][0]["message"]
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["weather"]
    assert plan_of(served).max_calls == 1


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        (None, ToolChoice.AUTO, {"weather", "time"}),
        ("auto", ToolChoice.AUTO, {"weather", "time"}),
        ("required", ToolChoice.REQUIRED, {"weather", "time"}),
        ({"type": "function", "function": {"name": "time"}}, ToolChoice.NAMED, {"time"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
            ToolChoice.REQUIRED,
            {"weather"},
        ),
    ],
)
async def test_tool_choices_of_both_dialects_reach_the_grammar(
    served: Served, choice: object, expected: ToolChoice, names: set[str]
) -> None:
    served.engine.script = says('<tool_call>{"name": "time", "arguments": {"city": "A"}}</tool_call>')
    await served.post(CHAT, chat(tools=TOOLS, tool_choice=choice))
    plan = plan_of(served)
    assert plan.choice is expected
    assert {tool.name for tool in plan.tools} == names


async def test_choice_none_offers_no_tools_and_reads_no_calls(served: Served) -> None:
    served.engine.script = says("Plain words")
    message = (await served.post(CHAT, chat(tools=TOOLS, tool_choice="none"))).json()["choices"][0]["message"]
    assert (message["content"], message["tool_calls"]) == ("Plain words", [])
    request = served.engine.seen[0]
    assert request.constraint is None
    assert b"weather" not in bytes(i for i in request.prompt_ids if i < 256)
    assert small_tokenizer().roles.tool_open in request.params.banned_ids


async def test_history_with_tools_needs_no_tools_on_offer(served: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    served.engine.script = says("It rains.")
    message = (await served.post(CHAT, chat(messages=messages))).json()["choices"][0]["message"]
    assert (message["content"], message["tool_calls"]) == ("It rains.", [])
    text = "".join(map(small_tokenizer().token_text, served.engine.seen[0].prompt_ids))
    assert "Oslo" in text
    assert "rain" in text


async def test_reasoning_sent_back_in_a_tool_loop_is_shown_to_the_model(served: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "reasoning_content": "I should look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    await served.post(CHAT, chat(messages=messages))
    assert b"I should look." in bytes(i for i in served.engine.seen[0].prompt_ids if i < 256)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools.1.function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, None),
    ],
)
async def test_contradictory_tools_are_named(served: Served, fields: dict[str, Any], param: str | None) -> None:
    response = await served.post(CHAT, chat(**fields))
    assert response.status_code == (200 if param is None else 400)
    assert param is None or response.json()["error"]["param"].startswith(param)


async def test_arguments_that_break_their_schema_are_an_error_and_not_a_call(served: Served) -> None:
    served.engine.script = says('<tool_call>{"name": "weather", "arguments": {"town": 1}}</tool_call>')
    response = await served.post(CHAT, chat(tools=TOOLS))
    assert response.json()["error"]["code"] == "output_invalid"
    streamed = await served.post(CHAT, chat(tools=TOOLS, stream=True))
    assert "[DONE]" not in streamed.text
    assert "output_invalid" in streamed.text


async def test_a_required_call_that_did_not_come_is_an_error_and_not_an_answer(served: Served) -> None:
    served.engine.script = says("I would rather talk.")
    response = await served.post(CHAT, chat(tools=TOOLS, tool_choice="required"))
    assert response.json()["error"]["code"] == "output_invalid"
    assert (await served.post(CHAT, chat(tools=TOOLS))).status_code == 200


async def test_a_strict_tool_that_cannot_be_guaranteed_is_a_400_naming_the_keyword(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.com/x.json"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    response = await served.post(CHAT, chat(tools=[tool]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert "x.json" in response.json()["error"]["message"]


async def test_responses_dialect_of_tools(served: Served) -> None:
    served.engine.script = says(CALL)
    tool = {"type": "function", "name": "weather", "parameters": CITY}
    body = {"model": "nano", "input": "x", "tools": [tool], "tool_choice": {"type": "function", "name": "weather"}}
    reply = (await served.post("/v1/responses", body)).json()
    item = reply["output"][0]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "weather", '{"city": "Oslo"}')
    assert item["call_id"].startswith("call_")
    assert plan_of(served).choice is ToolChoice.NAMED


async def test_calls_beside_a_formatted_answer_are_checked_too(served: Served) -> None:
    wrong = CALL.replace('"Oslo"', "7")
    body = chat(tools=TOOLS, response_format={"type": "json_object"})
    served.engine.script = says('{"a": 1}' + wrong)
    assert (await served.post(CHAT, body)).json()["error"]["code"] == "output_invalid"
    served.engine.script = says('{"a": 1}' + CALL)
    assert (await served.post(CHAT, body)).json()["choices"][0]["message"]["content"] == '{"a": 1}'


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_call_of_no_allowed_tool_cannot_be_required(served: Served, mode: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": []}}
    tool = {"type": "function", "function": {"name": "f"}}
    reply = await served.post("/v1/chat/completions", chat(tools=[tool], tool_choice=choice))
    if mode == "auto":
        assert reply.status_code == 200
    else:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")
