"""Messages bodies as chat bodies."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.messages.plan import as_chat, plan_message, skipped_tools
from quicksilver.server.endpoints.messages.wire import MessagesBody
from tests.server.conftest import Served

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}


def body(messages: list[dict[str, Any]] | None = None, **fields: object) -> MessagesBody:
    return MessagesBody.model_validate({"model": "nano", "max_tokens": 64, "messages": messages or [USER], **fields})


def roles(given: MessagesBody) -> list[tuple[str, Any]]:
    return [(message.role, message.content) for message in as_chat(given).messages]


def test_system_is_text_blocks_or_a_message() -> None:
    blocks = [{"type": "text", "text": "A.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B."}]
    assert roles(body(system="A.")) == [("system", "A."), ("user", "Hi")]
    assert roles(body(system=blocks)) == [("system", "A.\n\nB."), ("user", "Hi")]
    later = [USER, {"role": "assistant", "content": "Yes?"}, {"role": "system", "content": "Be brief."}, USER]
    assert [role for role, _ in roles(body(later))] == ["user", "assistant", "system", "user"]


def test_calls_and_their_results_become_turns() -> None:
    history: list[dict[str, Any]] = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Looking."},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Thanks."},
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no such city", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t3"},
            ],
        },
    ]
    chat = as_chat(body(history))
    assert [message.role for message in chat.messages] == ["user", "assistant", "tool", "tool", "tool", "user"]
    calls = chat.messages[1].tool_calls
    assert calls is not None
    assert (calls[0].id, calls[0].function.name, calls[0].function.arguments) == ("t1", "look", '{"at":"Oslo"}')
    assert [message.content for message in chat.messages[2:]] == ["rain", "Error: no such city", "", "Thanks."]


def test_documents_and_search_results_are_text() -> None:
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    found = {"type": "search_result", "source": "s", "title": "U", "content": [{"type": "text", "text": "F"}]}
    assert roles(body([{"role": "user", "content": [document, found]}])) == [("user", "T\nD\n\nU\ns\nF")]
    parts = [{"type": "text", "text": "D"}, {"type": "text", "text": "E"}]
    for content, text in (("D", "D"), (parts, "D\nE")):
        whole = {"type": "document", "source": {"type": "content", "content": content}}
        assert roles(body([{"role": "user", "content": [whole]}])) == [("user", text)]


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, "none"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"output_config": {"effort": "high"}}, "none"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "high"),
        ({"thinking": {"type": "adaptive"}}, "medium"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "high"),
    ],
)
def test_thinking_is_off_unless_asked_for(fields: dict[str, Any], effort: str) -> None:
    assert as_chat(body(**fields)).reasoning_effort == effort


@pytest.mark.parametrize(
    ("choice", "wanted", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
    ],
)
def test_tool_choice(choice: dict[str, Any], wanted: str, parallel: bool | None) -> None:
    chat = as_chat(body(tools=[TOOL], tool_choice=choice))
    assert (chat.tool_choice, chat.parallel_tool_calls) == (wanted, parallel)


def test_a_named_tool_needs_its_name() -> None:
    named = as_chat(body(tools=[TOOL], tool_choice={"type": "tool", "name": "look"})).tool_choice
    assert named is not None
    with pytest.raises(InvalidRequest, match="needs the name"):
        as_chat(body(tools=[TOOL], tool_choice={"type": "tool"}))


def test_tools_of_the_provider_are_skipped_with_a_warning() -> None:
    given = body(tools=[TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}])
    chat = as_chat(given)
    assert chat.tools is not None
    assert [tool.function.name for tool in chat.tools] == ["look"]
    assert skipped_tools(given) == "tools that this server does not run were skipped: web_search"
    only_theirs = body(tools=[{"type": "bash_20250124", "name": "bash"}], tool_choice={"type": "any"})
    assert as_chat(only_theirs).tools is None


def test_structured_output_under_both_names() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for given in (body(output_config={"format": form}), body(output_format=form)):
        chosen = as_chat(given).response_format
        assert chosen is not None
        assert chosen.model_dump(by_alias=True)["json_schema"]["schema"] == {"type": "object"}


async def test_the_thinking_budget_bounds_the_engine(served: Served) -> None:
    given = body(max_tokens=400, thinking={"type": "enabled", "budget_tokens": 40})
    (answer,) = (await plan_message(given, served.services, "")).answers
    think = answer.request.think
    assert think is not None
    assert len(think.cut_ids) > 0
    assert think.max_tokens + len(think.cut_ids) == 40


async def test_an_answer_of_the_assistant_is_not_continued(served: Served) -> None:
    with pytest.raises(InvalidRequest, match="last message"):
        await plan_message(body([USER, {"role": "assistant", "content": "The"}]), served.services, "")
