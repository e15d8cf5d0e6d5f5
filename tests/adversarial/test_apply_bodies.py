"""Odd bodies to `/v1/apply/completions`: each is answered or refused, none is a server error."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Served

APPLY = "/v1/apply/completions"
ORIGINAL, UPDATE = "<|original_code|>\na\nb\nc\n<|/original_code|>", "<|update_snippet|>\na\nB\nc\n<|/update_snippet|>"
ELLIPSIS = "// ... existing code ..."


def body(content: object, **fields: object) -> dict[str, Any]:
    return {"model": "nano", "messages": [{"role": "user", "content": content}], **fields}


@pytest.mark.parametrize(
    "content",
    [
        "",
        " \n\t",
        ORIGINAL,
        UPDATE,
        UPDATE + ORIGINAL,
        ORIGINAL + UPDATE + ORIGINAL + UPDATE,
        "<|original_code|>" + UPDATE,
        "<|/original_code|><|/update_snippet|>",
        "<|original_code|><|update_snippet|><|/original_code|><|/update_snippet|>",
        "<|original_code|>\n<|/original_code|>\n<|update_snippet|>\n<|/update_snippet|>",
        f"<|original_code|>\na\n<|/original_code|>\n<|update_snippet|>\n{ELLIPSIS}\n<|/update_snippet|>",
        f"<|original_code|>\n<|/original_code|>\n<|update_snippet|>\n{ELLIPSIS}\nx\n{ELLIPSIS}\n<|/update_snippet|>",
        f"<|original_code|>\r\na\r\nb\r\n<|/original_code|>\r\n<|update_snippet|>\r\n{ELLIPSIS}\r\nB\r\n"
        "<|/update_snippet|>",
        "<|original_code|>\n\x00\n<|/original_code|>\n<|update_snippet|>\n\x00\x01\n<|/update_snippet|>",
        "<|original_code|>\n👩‍👩‍👧\u202e\ufeff\n<|/original_code|>\n<|update_snippet|>\né\n<|/update_snippet|>",
        "<|original_code|>" * 500 + "<|/update_snippet|>" * 500,
        f"<|original_code|>\n{'x' * 2000}\n<|/original_code|>\n<|update_snippet|>\n{'y' * 1000}\n<|/update_snippet|>",
        "<|original_code|>\n" + "same\n" * 300 + "<|/original_code|>\n" + UPDATE,
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_odd_prompts(served: Served, content: str, stream: bool) -> None:
    reply = await served.post(APPLY, body(content, stream=stream))
    assert reply.status_code in (200, 400), reply.text
    assert "internal_error" not in reply.text


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": []},
        {"messages": None},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": {"text": "x"}}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "tool", "content": "x"}] * 17},
        {"max_tokens": 0},
        {"max_tokens": 65_537},
        {"max_tokens": 1.5},
        {"temperature": "hot"},
        {"seed": 2**60},
        {"stream_options": []},
        {"decoder": {"canvas_len": 100_000}},
        {"model": 5},
        {"model": "x" * 257},
    ],
)
async def test_fields_out_of_bounds_are_refused(served: Served, changes: dict[str, object]) -> None:
    reply = await served.post(APPLY, {**body(ORIGINAL + UPDATE), **changes})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert served.engine.seen == []


@pytest.mark.parametrize("model", ["", None])
async def test_an_empty_model_selects_the_default_model(served: Served, model: str | None) -> None:
    reply = await served.post(APPLY, {**body(ORIGINAL + UPDATE), "model": model})
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == "nano"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": ORIGINAL + UPDATE}],
        [{"role": "system", "content": "x"}, {"role": "user", "content": ORIGINAL + UPDATE}],
        [{"role": "user", "content": [{"type": "text", "text": ORIGINAL}, {"type": "text", "text": UPDATE}]}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 5000}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 5000}}]}],
        [{"role": "user", "content": ORIGINAL + UPDATE}] * 16,
    ],
)
async def test_odd_conversations(served: Served, messages: list[dict[str, object]]) -> None:
    reply = await served.post(APPLY, {"model": "nano", "messages": messages})
    assert reply.status_code in (200, 400), reply.text


@pytest.mark.parametrize("depth", [100, 900, 960, 980, 990, 1000, 100_000])
async def test_deeply_nested_tool_arguments_are_refused(served: Served, depth: int) -> None:
    calls = [{"function": {"name": "f", "arguments": "[" * depth + "]" * depth}}]
    messages = [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "x"}]
    for path in (APPLY, "/v1/chat/completions"):
        reply = await served.post(path, {"model": "nano", "messages": messages})
        assert reply.status_code == 400, reply.text
