"""/v1/messages: blocks, events, thinking that comes back, errors, keys."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from quicksilver.core import Request
from quicksilver.errors import EngineDied
from quicksilver.server.endpoints.chat.tool_names import short_name
from tests.server.conftest import HELLO, Served, says
from tests.support.bank import Bank
from tests.support.fake_engine import Step, spoken
from tests.support.small_tokenizer import small_tokenizer

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
VERSION = {"anthropic-version": "2023-06-01", "anthropic-beta": "fine-grained-tool-streaming-2025-05-14"}
WEATHER = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


def ask(given: object = "Hi", **fields: object) -> dict[str, Any]:
    return {"model": "nano", "max_tokens": 512, "messages": [{"role": "user", "content": given}], **fields}


def named_events(response: httpx.Response) -> list[dict[str, Any]]:
    blocks = [block.split("\n") for block in response.text.split("\n\n") if block]
    received = [(head.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))) for head, data in blocks]
    assert all(name == event["type"] for name, event in received)
    return [event for _, event in received]


def accumulate(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client builds from the events."""
    message: dict[str, Any] = events[0]["message"]
    partial = ""
    for event in events[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            message["content"].append(event["content_block"])
            partial = ""
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                partial += delta["partial_json"]
                continue
            key = delta["type"].removesuffix("_delta")
            block[key] = delta[key] if key == "signature" else block[key] + delta[key]
        elif kind == "content_block_stop" and partial:
            message["content"][event["index"]]["input"] = orjson.loads(partial)
            partial = ""
        elif kind == "message_delta":
            message.update(event["delta"], usage=event["usage"])
    return message


def unidentified(message: dict[str, Any]) -> dict[str, Any]:
    """Without the ids, which differ from reply to reply."""
    content = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return {**{k: v for k, v in message.items() if k != "id"}, "content": content}


async def test_plain_reply(served: Served) -> None:
    response = await served.post(MESSAGES, ask(system="Be kind."), VERSION)
    reply = response.json()
    assert (reply["type"], reply["role"], reply["model"], reply["stop_reason"]) == (
        "message",
        "assistant",
        "nano",
        "end_turn",
    )
    assert reply["id"].startswith("msg_")
    assert reply["content"] == [{"type": "text", "text": HELLO}]
    assert reply["usage"]["output_tokens"] == len(HELLO.encode())
    assert response.headers["request-id"] == response.headers["x-request-id"]
    prompt = "".join(map(small_tokenizer().token_text, served.engine.seen[-1].prompt_ids))
    assert "Be kind." in prompt


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (HELLO, {}),
        ("", {}),
        ("think</think>Answer", {"thinking": {"type": "adaptive"}}),
        (f"think</think>Let me see.{CALL}", {"thinking": {"type": "adaptive"}, "tools": [WEATHER]}),
        (CALL + CALL, {"tools": [WEATHER]}),
        ("one END two", {"stop_sequences": ["END"]}),
    ],
)
async def test_events_build_the_same_message_as_the_whole_reply(
    served: Served, text: str, fields: dict[str, Any]
) -> None:
    served.engine.script = says(text)
    whole = (await served.post(MESSAGES, ask(**fields))).json()
    received = named_events(await served.post(MESSAGES, ask(**fields, stream=True)))
    assert received[0]["message"]["usage"]["input_tokens"] == len(served.engine.seen[-1].prompt_ids)
    assert received[1] == {"type": "ping"}
    assert [event["type"] for event in received[-2:]] == ["message_delta", "message_stop"]
    assert unidentified(accumulate(received)) == unidentified(whole)


async def test_blocks_are_opened_and_closed_in_order(served: Served) -> None:
    served.engine.script = says(f"think</think>Let me see.{CALL}")
    received = named_events(
        await served.post(MESSAGES, ask(thinking={"type": "adaptive"}, tools=[WEATHER], stream=True))
    )
    marks = [
        (event["type"].removeprefix("content_block_"), event["index"])
        for event in received
        if event["type"] in ("content_block_start", "content_block_stop")
    ]
    assert marks == [(kind, index) for index in range(3) for kind in ("start", "stop")]
    started = [event["content_block"]["type"] for event in received if event["type"] == "content_block_start"]
    assert started == ["thinking", "text", "tool_use"]


async def test_a_call_has_its_input_as_an_object(served: Served) -> None:
    served.engine.script = says(CALL)
    reply = (await served.post(MESSAGES, ask(tools=[WEATHER], tool_choice={"type": "any"}))).json()
    assert reply["stop_reason"] == "tool_use"
    (block,) = reply["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {"city": "Oslo"})


async def test_a_stop_sequence_is_named(served: Served) -> None:
    served.engine.script = says("one END two")
    reply = (await served.post(MESSAGES, ask(stop_sequences=["nothing", "END"]))).json()
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")
    assert reply["content"] == [{"type": "text", "text": "one "}]


async def test_a_cut_reply(served: Served) -> None:
    assert (await served.post(MESSAGES, ask(max_tokens=3))).json()["stop_reason"] == "max_tokens"


async def test_thinking_comes_back_with_its_signature(served: Served) -> None:
    served.engine.script = says("Oslo is wet.</think>Rain.")
    given = ask(thinking={"type": "enabled", "budget_tokens": 64})
    first = (await served.post(MESSAGES, given)).json()
    assert [block["type"] for block in first["content"]] == ["thinking", "text"]
    assert first["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    messages = [*given["messages"], {"role": "assistant", "content": first["content"]}, *given["messages"]]
    assert (await served.post(MESSAGES, {**given, "messages": messages})).status_code == 200
    first["content"][0]["thinking"] = "Oslo is dry."
    refused = await served.post(MESSAGES, {**given, "messages": messages})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "messages.1.content.0: Invalid `signature` in `thinking` block"
    assert (await served.post(COUNT, {"model": "nano", "messages": messages})).status_code == 400


async def test_thinking_may_be_omitted(served: Served) -> None:
    served.engine.script = says("secret</think>Rain.")
    given = ask(thinking={"type": "adaptive", "display": "omitted"})
    reply = (await served.post(MESSAGES, given)).json()
    assert reply["content"][0]["thinking"] == ""
    again = [*given["messages"], {"role": "assistant", "content": reply["content"]}, *given["messages"]]
    assert (await served.post(MESSAGES, {**given, "messages": again})).status_code == 200


async def test_other_words_for_the_display_have_no_effect(served: Served) -> None:
    served.engine.script = says("visible</think>Rain.")
    reply = (await served.post(MESSAGES, ask(thinking={"type": "adaptive", "display": "updates"}))).json()
    assert reply["content"][0]["thinking"] == "visible"


async def test_structured_output(served: Served) -> None:
    served.engine.script = says('{"a": 1}')
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    given = ask(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert (await served.post(MESSAGES, given)).json()["content"][0]["text"] == '{"a": 1}'
    assert served.engine.seen[-1].constraint is not None


async def test_skipped_tools_are_named_in_a_warning(served: Served) -> None:
    reply = (await served.post(MESSAGES, ask(tools=[{"type": "web_search_20250305", "name": "web_search"}]))).json()
    assert "web_search" in reply["warning"]


async def test_what_the_provider_ran_is_skipped_with_a_warning(served: Served) -> None:
    searched = [
        {"type": "text", "text": "Let me look."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}},
    ]
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": searched},
        {"role": "user", "content": "And?"},
    ]
    toolset = {"type": "mcp_toolset", "mcp_server_name": "files"}
    ignored = {"mcp_servers": [{"type": "url", "name": "files"}], "metadata": {"user_id": "u"}}
    given = ask(messages=turns, tools=[toolset], **ignored)
    reply = (await served.post(MESSAGES, given)).json()
    for part in ("mcp_toolset", "server_tool_use, web_search_tool_result, mcp_tool_use", "ignored fields: mcp_servers"):
        assert part in reply["warning"]
    assert "metadata" not in reply["warning"]
    assert (await served.post(MESSAGES, ask(tools=[{"input_schema": {"type": "object"}}]))).status_code == 400


async def test_long_names_of_tools_come_back_whole(served: Served) -> None:
    names = [f"{'n' * 124}_{end}" for end in ("one", "two")]
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    for name in names:
        served.engine.script = says(f'<tool_call>{{"name": "{short_name(name)}", "arguments": {{}}}}</tool_call>')
        choice = {"type": "tool", "name": name}
        (block,) = (await served.post(MESSAGES, ask(tools=tools, tool_choice=choice))).json()["content"]
        assert (block["type"], block["name"]) == ("tool_use", name)
        turns = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [block]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block["id"], "content": "x"}]},
        ]
        assert (await served.post(MESSAGES, ask(messages=turns, tools=tools))).status_code == 200
    assert (await served.post(MESSAGES, ask(tools=[{**tools[0], "name": "n" * 129}]))).status_code == 400


async def test_an_error_has_the_id_of_its_request(served: Served, bank: Bank) -> None:
    headers = {**VERSION, **await bank.key(credits=0)}
    refused = await served.post(MESSAGES, ask(), headers)
    assert refused.json()["error"]["type"] == "billing_error"
    for reply in (refused, await served.post(MESSAGES, ask(max_tokens=0), headers), await served.get(MESSAGES)):
        assert reply.json()["request_id"] == reply.headers["request-id"]


async def test_tokens_are_counted_as_the_prompt_has_them(served: Served) -> None:
    given = ask("How long?", system="Be kind.", tools=[WEATHER])
    reply = (await served.post(MESSAGES, given)).json()
    del given["max_tokens"]
    counted = (await served.post(COUNT, given)).json()
    assert counted == {"input_tokens": reply["usage"]["input_tokens"] + reply["usage"]["cache_read_input_tokens"]}
    assert len(served.engine.seen) == 1


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1"),
    ],
)
async def test_bad_bodies_are_refused_in_the_envelope(served: Served, fields: dict[str, Any], word: str) -> None:
    refused = await served.post(MESSAGES, ask(**fields))
    assert refused.status_code == 400
    error = refused.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert word in error["error"]["message"]


async def test_other_errors_have_the_envelope_too(served: Served) -> None:
    unknown = await served.post(MESSAGES, ask(model="claude-9"))
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    assert (await served.get(MESSAGES)).json()["type"] == "error"
    assert (await served.post("/v1/messages/batches", {})).json()["error"]["type"] == "not_found_error"
    assert (await served.post(MESSAGES, ask(), {"anthropic-version": "newest"})).status_code == 400
    long = await served.post(MESSAGES, ask("x" * 9000))
    assert long.json()["error"]["message"].startswith("prompt is too long")
    served.engine.is_ready = False
    busy = await served.post(MESSAGES, ask())
    assert (busy.status_code, busy.json()["error"]["type"]) == (503, "overloaded_error")


async def test_an_error_inside_the_stream_is_the_last_event(served: Served) -> None:
    served.engine.script = lambda r: [*spoken(r, range(97, 110))[:2], EngineDied("the worker died")]
    received = named_events(await served.post(MESSAGES, ask(stream=True)))
    assert received[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "the worker died"}}


async def test_an_idle_stream_is_kept_alive_with_pings(served: Served) -> None:
    served.configure(keep_alive_comment_s=0.01)

    def pausing(request: Request) -> list[Step]:
        first, *rest = says(HELLO)(request)
        return [first, lambda: asyncio.sleep(0.1), *rest]

    served.engine.script = pausing
    received = named_events(await served.post(MESSAGES, ask(stream=True)))
    assert sum(event["type"] == "ping" for event in received) > 1


async def test_a_key_comes_as_bearer_or_as_x_api_key(served: Served, bank: Bank) -> None:
    bearer = await bank.key()
    secret = bearer["authorization"].removeprefix("Bearer ")
    assert (await served.post(MESSAGES, ask(), bearer)).status_code == 200
    assert (await served.post(MESSAGES, ask(), {"x-api-key": secret})).status_code == 200
    assert await bank.spent() > 0
    for wrong in ({}, {"x-api-key": "qs-wrong"}, {"x-api-key": secret, "authorization": "Bearer qs-wrong"}):
        refused = await served.post(MESSAGES, ask(), wrong)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


async def test_a_call_with_a_large_integer_comes_back(served: Served) -> None:
    tool = {"name": "find", "input_schema": {"type": "object", "properties": {"id": {"type": "integer"}}}}
    served.engine.script = says(f'<tool_call>{{"name": "find", "arguments": {{"id": {2**60}}}}}</tool_call>')
    content = (await served.post(MESSAGES, ask(tools=[tool]))).json()["content"]
    assert content[-1]["input"] == {"id": 2**60}
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "found"}
    turns = [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    body = ask(tools=[tool])
    body["messages"] += turns
    assert (await served.post(MESSAGES, body)).status_code == 200
