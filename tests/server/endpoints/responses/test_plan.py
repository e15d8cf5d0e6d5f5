"""Responses bodies as chat bodies."""

from __future__ import annotations

from quicksilver.server.endpoints.responses.plan import as_chat, read_input
from quicksilver.server.endpoints.responses.wire import ResponsesBody


def body(**fields: object) -> ResponsesBody:
    return ResponsesBody.model_validate({"model": "nano", "input": "Hi", **fields})


def test_text_and_instructions() -> None:
    chat = as_chat(body(instructions="Be brief.", max_output_tokens=5))
    assert [(m.role, m.content) for m in chat.messages] == [("system", "Be brief."), ("user", "Hi")]
    assert chat.max_tokens == 5


def test_consecutive_calls_belong_to_one_turn() -> None:
    items = [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "a"},
        {"type": "reasoning"},
    ]
    given = body(input=items).input
    messages = read_input(given)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["1", "2"]


def test_formats_and_tools_have_the_form_of_chat() -> None:
    schema = {"type": "object"}
    chat = as_chat(
        body(
            text={"format": {"type": "json_schema", "name": "p", "schema": schema, "strict": True}},
            tools=[{"type": "function", "name": "f", "parameters": schema}],
            tool_choice={"type": "function", "name": "f"},
        )
    )
    assert chat.response_format is not None
    assert chat.response_format.model_dump(by_alias=True)["json_schema"]["schema"] == schema
    assert chat.tools is not None
    assert chat.tools[0].function.name == "f"
    assert chat.tool_choice is not None
