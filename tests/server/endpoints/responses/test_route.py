"""/v1/responses: items, events, and the chat request that both APIs share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from quicksilver.core import Delta, FinishReason, TokenLogprob, Usage
from quicksilver.errors import EngineDied
from quicksilver.server.endpoints.responses.plan import namespaced
from tests.server.conftest import HELLO, Served, says
from tests.support.fake_engine import spoken
from tests.support.small_tokenizer import small_tokenizer

RESPONSES = "/v1/responses"


def ask(given: object = "Hi", **fields: object) -> dict[str, object]:
    return {"model": "nano", "input": given, **fields}


def named_events(response: httpx.Response) -> list[dict[str, Any]]:
    blocks = [block.split("\n") for block in response.text.split("\n\n") if block]
    received = [(head.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))) for head, data in blocks]
    assert all(name == event["type"] for name, event in received)
    return [event for _, event in received]


def prompt_text(served: Served) -> str:
    return "".join(map(small_tokenizer().token_text, served.engine.seen[-1].prompt_ids))


async def test_plain_reply_has_one_message_item(served: Served) -> None:
    reply = (await served.post(RESPONSES, ask(instructions="Be kind.", metadata={"a": "b"}))).json()
    assert (reply["object"], reply["status"], reply["store"]) == ("response", "completed", True)
    assert [item["type"] for item in reply["output"]] == ["message"]
    assert reply["output"][0]["content"][0]["text"] == HELLO
    assert reply["usage"]["output_tokens"] == len(HELLO.encode())
    assert reply["metadata"] == {"a": "b"}
    assert "Be kind." in prompt_text(served)


async def test_events_build_the_same_response_as_the_plain_reply(served: Served) -> None:
    served.engine.script = says("think</think>Answer")
    body = ask(reasoning={"effort": "low"})
    plain = (await served.post(RESPONSES, body)).json()
    received = named_events(await served.post(RESPONSES, {**body, "stream": True}))
    assert [event["sequence_number"] for event in received] == list(range(len(received)))
    assert received[0]["type"] == "response.created"
    assert received[-1]["type"] == "response.completed"
    final = received[-1]["response"]
    texts = [[item["type"], item["content"][0]["text"]] for item in final["output"]]
    assert texts == [["reasoning", "think"], ["message", "Answer"]]
    assert texts == [[item["type"], item["content"][0]["text"]] for item in plain["output"]]
    assert final["usage"] == plain["usage"]


async def test_every_item_is_opened_filled_and_closed_in_order(served: Served) -> None:
    received = named_events(await served.post(RESPONSES, ask(stream=True)))
    kinds = [event["type"].removeprefix("response.") for event in received]
    opening = ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[:4] == opening
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert "".join(event["delta"] for event in received if event["type"].endswith("output_text.delta")) == HELLO


async def test_history_items_become_turns(served: Served) -> None:
    history = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "Rain."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
    ]
    assert (await served.post(RESPONSES, ask(history))).status_code == 200
    text = prompt_text(served)
    for part in ("Weather?", "look", "Oslo", "rain", "Rain.", "Thanks"):
        assert part in text


async def test_cut_replies_are_incomplete(served: Served) -> None:
    reply = (await served.post(RESPONSES, ask(max_output_tokens=3))).json()
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply["output"][0]["status"] == "incomplete"


async def test_an_empty_answer_still_has_a_message(served: Served) -> None:
    served.engine.script = says("")
    reply = (await served.post(RESPONSES, ask())).json()
    assert reply["output"][0]["type"] == "message"
    assert reply["output"][0]["content"] == []


async def test_an_error_inside_the_stream_fails_the_response(served: Served) -> None:
    served.engine.script = lambda r: [*spoken(r, range(97, 110))[:2], EngineDied("the worker died")]
    received = named_events(await served.post(RESPONSES, ask(stream=True)))
    assert received[-1]["type"] == "response.failed"
    assert received[-1]["response"]["error"]["message"] == "the worker died"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", {"id": "pmpt_1"}),
        ("truncation", "always"),
        ("tools", [{"type": "function"}]),
        ("tools", [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "bnf", "definition": "x"}}]),
        ("input", [{"type": "item_reference", "id": "x"}]),
        ("input", [{"type": "no_such_item"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "http://example.com/a.png"}]}]),
    ],
)
async def test_what_cannot_be_honoured_is_named(served: Served, field: str, value: object) -> None:
    response = await served.post(RESPONSES, ask(**{field: value}) if field != "input" else ask(value))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(field)


async def test_logprobs_come_with_their_text_whole_and_streamed(served: Served) -> None:
    ids = small_tokenizer().encode("Hey")
    scores = tuple(TokenLogprob(i, -0.5, ((ord("x"), -2.0),)) for i in ids)
    last = Delta("", tuple(ids), scores, finish=FinishReason.STOP, usage=Usage(1, 0, len(ids)))
    served.engine.script = lambda request: [replace(last, request_id=request.id)]
    part = (await served.post(RESPONSES, ask(top_logprobs=1))).json()["output"][0]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["H", "e", "y"]
    assert part["logprobs"][0]["top_logprobs"] == [{"token": "x", "logprob": -2.0, "bytes": [120]}]
    received = named_events(await served.post(RESPONSES, ask(top_logprobs=1, stream=True)))
    deltas = [event["logprobs"] for event in received if event["type"] == "response.output_text.delta"]
    assert [entry for entries in deltas for entry in entries] == part["logprobs"]
    assert received[-1]["response"]["output"][0]["content"][0] == part


async def test_reasoning_is_summarised_when_asked(served: Served) -> None:
    served.engine.script = says("First this. Then that.</think>Answer")
    wanted = {"effort": "low", "summary": "auto"}
    reply = (await served.post(RESPONSES, ask(reasoning=wanted))).json()
    assert reply["output"][0]["summary"] == [{"type": "summary_text", "text": "First this. Then that."}]
    assert reply["reasoning"] == wanted
    silent = (await served.post(RESPONSES, ask(reasoning={"effort": "low"}))).json()
    assert silent["output"][0]["summary"] == []


PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin\\n" /[a-z]+/ "\\n*** End"'},
}
PATCH_TEXT = "*** Begin\nabc\n*** End"


async def test_hosted_tools_are_skipped_with_a_warning(served: Served) -> None:
    hosted = [{"type": "web_search", "external_web_access": False}, {"type": "image_generation"}]
    reply = (await served.post(RESPONSES, ask(tools=hosted, tool_choice={"type": "web_search"}))).json()
    assert "web_search, image_generation" in reply["warning"]
    assert served.engine.seen[-1].constraint is None
    past = [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"role": "user", "content": "x"}]
    assert (await served.post(RESPONSES, ask(past))).status_code == 200


async def test_a_custom_tool_is_called_with_plain_text(served: Served) -> None:
    served.engine.script = says(f'<tool_call>{{"name": "apply_patch"}}\n{PATCH_TEXT}</tool_call>')
    reply = (await served.post(RESPONSES, ask(tools=[PATCH]))).json()
    (item,) = reply["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", PATCH_TEXT)
    received = named_events(await served.post(RESPONSES, ask(tools=[PATCH], stream=True)))
    deltas = [event["delta"] for event in received if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == PATCH_TEXT
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    await served.post(RESPONSES, ask([{"role": "user", "content": "x"}, item, output], tools=[PATCH]))
    assert prompt_text(served).index("*** Begin") < prompt_text(served).rindex("done")


async def test_ignored_fields_are_named_in_a_warning(served: Served) -> None:
    reply = (await served.post(RESPONSES, ask(max_tool_calls=3, service_tier="auto", include=[], temprature=1))).json()
    assert reply["warning"] == "ignored fields: max_tool_calls, temprature"


async def test_long_names_of_a_namespace_stay_apart(served: Served) -> None:
    names = [f"{'n' * 60}_{end}" for end in ("one", "two")]
    inner = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in names]
    tools = [{"type": "namespace", "name": "s" * 60, "tools": inner}]
    for name in names:
        called = namespaced("s" * 60, name)
        assert len(called) == 64
        served.engine.script = says(f'<tool_call>{{"name": "{called}", "arguments": {{}}}}</tool_call>')
        (item,) = (await served.post(RESPONSES, ask(tools=tools))).json()["output"]
        assert (item["namespace"], item["name"]) == ("s" * 60, name)


async def test_only_the_last_item_is_cut_off(served: Served) -> None:
    ids = small_tokenizer().encode_markup("<think>Well.</think>Hello there")
    served.engine.script = lambda request: spoken(request, ids, finish=FinishReason.LENGTH)
    reply = (await served.post(RESPONSES, ask(reasoning={"effort": "low"}))).json()
    assert reply["status"] == "incomplete"
    assert [(item["type"], item["status"]) for item in reply["output"]] == [
        ("reasoning", "completed"),
        ("message", "incomplete"),
    ]


async def test_tools_of_a_namespace_are_called_by_their_own_name(served: Served) -> None:
    served.engine.script = says('<tool_call>{"name": "agents__spawn", "arguments": {}}</tool_call>')
    tools = [{"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}]
    (item,) = (await served.post(RESPONSES, ask(tools=tools))).json()["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "agents", "spawn")
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "done"}
    assert (await served.post(RESPONSES, ask([item, output], tools=tools))).status_code == 200
    assert "agents__spawn" in prompt_text(served).partition("<|im_end|>")[2]


async def test_a_request_without_input_is_answered(served: Served) -> None:
    assert (await served.post(RESPONSES, {})).json()["status"] == "completed"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user"}, "input.0.content: Field required"),
        ({"role": "tool", "content": "x"}, "input.0.role: Input should be"),
        ({"type": "function_call", "call_id": "1", "arguments": "{}"}, "input.0.name: Field required"),
        ({"type": "function_call_output", "call_id": "1"}, "input.0.output: Field required"),
        ({"type": "compaction_summary"}, "input.0.encrypted_content: Field required"),
        ({"type": "telepathy"}, "input.0.type: no item of this type can be read here"),
        ({"type": 3}, "input.0.type: Input should be a valid string"),
        (3, "input.0: Input should be"),
    ],
)
async def test_an_item_is_refused_by_the_rules_of_its_type(served: Served, item: object, message: str) -> None:
    error = (await served.post("/v1/responses", {"input": [item]})).json()["error"]
    assert error["message"].startswith(message)


async def test_a_hosted_template_is_refused_with_advice(served: Served) -> None:
    error = (await served.post("/v1/responses", {"input": "x", "prompt": {"id": "pmpt_1"}})).json()["error"]
    assert (error["param"], "instructions" in error["message"]) == ("prompt", True)
