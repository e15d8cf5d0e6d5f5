"""Messages as plain dicts: what is read, and the place of what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.text.conversation import Message, ToolCall
from quicksilver.text.messages import read_conversation, read_message


def test_a_string_is_one_user_message() -> None:
    assert read_conversation("hi") == [Message("user", "hi")]


def test_messages_and_dicts_may_be_mixed() -> None:
    written = Message("system", "Be brief.")
    assert read_conversation([written, {"role": "user", "content": "hi", "name": "Ann"}]) == [
        written,
        Message("user", "hi", name="Ann"),
    ]


def test_calls_and_reasoning_of_an_assistant_are_read() -> None:
    calls = [
        {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"function": {"name": "g", "arguments": {"b": 2}}},
        {"function": {"name": "h"}},
    ]
    message = read_message({"role": "assistant", "tool_calls": calls, "reasoning_content": "why"}, 0)
    assert message == Message(
        "assistant",
        reasoning="why",
        tool_calls=(ToolCall("f", '{"a": 1}', "1"), ToolCall("g", '{"b": 2}'), ToolCall("h", "")),
    )
    answer = read_message({"role": "tool", "content": "3", "tool_call_id": "1"}, 1)
    assert answer == Message("tool", "3", tool_call_id="1")


def test_keys_without_a_value_are_ignored() -> None:
    """As in the message of a reply, which is sent back with the next question."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": None}}
    reply = {"role": "assistant", "content": None, "refusal": None, "annotations": None, "tool_calls": [call]}
    assert read_message(reply, 0) == Message("assistant", tool_calls=(ToolCall("f", "", "1"),))


@pytest.mark.parametrize(
    ("message", "param", "reason"),
    [
        (3, "messages.2", "not int"),
        ({"role": "user", "content": "a", "text": "b"}, "messages.2", "unknown key 'text'"),
        ({"role": "bot", "content": "a"}, "messages.2.role", "system, user, assistant, tool"),
        ({"role": "user"}, "messages.2.content", "a string"),
        ({"role": "user", "content": ["a"]}, "messages.2.content", "a string"),
        ({"role": "assistant", "tool_calls": [{"name": "f"}]}, "messages.2", "a function with name"),
        ({"role": "assistant", "tool_calls": [3]}, "messages.2", "a function with name"),
    ],
)
def test_a_bad_message_is_refused_with_its_place(message: Any, param: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        read_message(message, 2)
    assert refused.value.param == param


def test_a_conversation_has_at_least_one_message() -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        read_conversation([])
