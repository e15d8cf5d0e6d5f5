"""Bodies: size before syntax, syntax before fields, and every refusal in one envelope."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from typing import Any

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.chat.plan import with_effort
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.http.body import REFUSED, parse_object
from tests.server.asgi import Call
from tests.server.conftest import HELLO, Served, chat
from tests.support.fake_engine import Script, spoken
from tests.support.shared_data import shared
from tests.support.small_tokenizer import small_tokenizer

CHAT = "/v1/chat/completions"
ENVELOPE = {"message", "type", "param", "code"}


async def test_a_body_at_the_cap_is_read_and_one_byte_more_is_a_413(served: Served) -> None:
    served.configure(body_bytes=1000)
    body = json.dumps(chat()).encode()
    at_cap = body + b" " * (1000 - len(body))
    assert (await served.post(CHAT, at_cap)).status_code == 200
    response = await served.post(CHAT, at_cap + b" ")
    assert response.status_code == 413
    assert response.headers["connection"] == "close"
    assert response.json()["error"]["code"] == "request_too_large"


async def test_a_body_without_announced_length_is_cut_off_at_the_cap(served: Served) -> None:
    served.configure(body_bytes=1000)
    call = Call(served.app, CHAT, b"x" * 1001, {"content-length": "0"})
    call.start()
    await call.finish()
    assert call.sent[0]["status"] == 413


async def test_a_body_that_stops_coming_is_a_408(served: Served) -> None:
    timeouts = replace(served.services.config.timeouts, body_idle_s=0.01)
    served.configure(timeouts=timeouts)
    call = Call(served.app, CHAT, chat())
    call._incoming.get_nowait()
    call.start()
    await call.finish()
    assert call.sent[0]["status"] == 408


async def test_compressed_bodies_are_refused_unread(served: Served) -> None:
    response = await served.post(CHAT, b"\x1f\x8b", {"content-encoding": "gzip"})
    assert response.status_code == 400


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"model":NaN}',
        b'{"model":"a","temperature":1e400}',
        b'{"model":"\\ud800"}',
        b'{"model":"\xff"}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        json.dumps(chat()).encode("utf-16"),
    ],
)
async def test_what_is_not_strict_json_is_a_400(served: Served, raw: bytes) -> None:
    response = await served.post(CHAT, raw)
    assert response.status_code == 400
    assert set(response.json()["error"]) == ENVELOPE


async def test_of_a_key_that_comes_twice_the_last_wins(served: Served) -> None:
    raw = b'{"model":"gpt-9","model":"nano","messages":[{"role":"user","content":"x"}]}'
    assert (await served.post(CHAT, raw)).status_code == 200


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63, 2**64, 10**30, "7", True, 1.5, [], {}])
async def test_integers_are_whole_numbers_that_every_reader_agrees_on(served: Served, value: object) -> None:
    response = await served.post(CHAT, chat(seed=value))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "seed"


async def test_a_whole_float_is_an_integer(served: Served) -> None:
    assert (await served.post(CHAT, chat(max_tokens=5.0))).status_code == 200
    assert served.engine.seen[0].params.max_new_tokens == 5


async def test_big_integers_in_free_json_are_refused(served: Served) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"maximum": 2**53 + 1}}}
    response = await served.post(CHAT, chat(tools=[tool]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools.0.function.parameters"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(model=5), "model"),
        (chat(messages=[]), "messages"),
        (chat(messages=[{"role": "robot", "content": "x"}]), "messages.0.role"),
        (chat(messages=[{"role": "user", "content": 5}]), "messages.0.content"),
        (chat(messages=[{"role": "user"}]), "messages.0.content"),
        (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages.0.content.0.type"),
        (chat(tools=[{"type": "function", "function": {"name": "a b"}}]), "tools.0.function.name"),
        (chat(response_format={"type": "xml"}), "response_format"),
        (chat(tool_choice="required"), "tool_choice"),
    ],
)
async def test_refusals_name_the_field(served: Served, body: dict[str, Any], param: str) -> None:
    response = await served.post(CHAT, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert isinstance(error["message"], str)


@pytest.mark.parametrize("field", ["messages", "temperature", "stream", "tools", "n", "stop", "logit_bias"])
@pytest.mark.parametrize("value", [{"a": 1}, "text", 7, [None], True])
async def test_wrong_types_are_refused_in_the_envelope(served: Served, field: str, value: object) -> None:
    response = await served.post(CHAT, chat(**{field: value}))
    if (field, value) in (("stop", "text"), ("stream", True), ("n", 7)):
        assert response.status_code == 200
        return
    assert response.status_code == 400
    assert set(response.json()["error"]) == ENVELOPE


async def test_every_optional_field_may_be_null(served: Served) -> None:
    nulls = {name: None for name, field in ChatBody.model_fields.items() if not field.is_required()}
    assert (await served.post(CHAT, chat(**nulls))).status_code == 200


def test_parser_agrees_with_the_json_suite() -> None:
    with tarfile.open(shared("json", "json-test-suite.tar.xz")) as suite:
        files = [member for member in suite if member.isfile() and member.name.endswith(".json")]
        cases = [(member.name.rsplit("/", 1)[-1], suite.extractfile(member)) for member in files]
        raws = [(name, file.read()) for name, file in cases if file is not None]
    assert sum(name.startswith("n_") for name, _ in raws) > 150
    for name, raw in raws:
        is_read = parses(b'{"value":' + raw + b"}") if not name.startswith("n_") else parses(raw)
        if name.startswith(("y_", "n_")):
            assert is_read is name.startswith("y_"), name


def parses(raw: bytes) -> bool:
    try:
        parse_object(raw)
    except InvalidRequest:
        return False
    return True


async def test_bodies_of_the_json_suite_never_make_a_5xx(served: Served) -> None:
    with tarfile.open(shared("json", "json-test-suite.tar.xz")) as suite:
        raws = [file.read() for member in suite if member.isfile() and (file := suite.extractfile(member))]
    async with served.client() as client:
        for raw in raws:
            response = await client.post(CHAT, content=raw)
            assert response.status_code == 400, raw[:80]
            assert set(response.json()["error"]) == ENVELOPE


def naughty_strings() -> list[str]:
    strings: list[str] = json.loads(shared("json", "naughty-strings.json").read_text("utf-8"))
    return strings


async def test_naughty_strings_pass_through_every_free_field_of_chat_unchanged(served: Served) -> None:
    served.engine.info = replace(served.engine.info, context_len=100_000)
    async with served.client() as client:
        for text in naughty_strings():
            served.engine.script = echo(text)
            response = await client.post(CHAT, json=naughty_chat(text))
            assert response.status_code == 200, text
            assert response.json()["choices"][0]["message"]["content"] == text, text
            prompt = small_tokenizer().decode(served.engine.seen[-1].prompt_ids)
            assert prompt.count(text) >= 6, text


def naughty_chat(text: str) -> dict[str, Any]:
    """A conversation with the text wherever any text may stand."""
    call = {"id": text[:256], "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": text})}}
    part = {"type": "text", "text": text}
    messages = [
        {"role": "developer", "content": text},
        {"role": "user", "content": [part, part], "name": one_line(text)[:256]},
        {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
        {"role": "tool", "content": text, "tool_call_id": text[:256]},
        {"role": "user", "content": text},
    ]
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": text}}}
    tools = [{"type": "function", "function": {"name": "f", "description": text, "parameters": parameters}}]
    labels = {"user": text[:512], "metadata": {text[:64]: text[:512]}, "stop": [HELLO]}
    return {"model": "nano", "messages": messages, "tools": tools, "tool_choice": "none", **labels, "ignored": text}


def one_line(text: str) -> str:
    """A name stands in the head of a turn, so control characters and line ends are refused there."""
    return "".join(char for char in text if char.isprintable() or char == " ")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "§", "instructions": "§"}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "§"}]}]}),
        ("/v1/completions", {"prompt": ["§", "§"]}),
        ("/v1/completions", {"prompt": "§", "echo": True}),
        (
            "/v1/apply/completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": "<|original_code|>\na = 1\n§\n<|/original_code|>\n"
                        "<|update_snippet|>\n§\n<|/update_snippet|>",
                    }
                ]
            },
        ),
        (
            "/v1/edit/completions",
            {"messages": [{"role": "user", "content": "<|code_to_edit|>\n§<|cursor|>\n<|/code_to_edit|>"}]},
        ),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "choice": ["§", "other label"]}),
    ],
)
async def test_naughty_strings_in_other_bodies_are_answered(served: Served, path: str, body: dict[str, Any]) -> None:
    async with served.client() as client:
        for text in naughty_strings():
            filled = fill({"model": "nano", "max_output_tokens": 8, "max_tokens": 8, **body}, text or " ")
            response = await client.post(path, json=filled)
            assert response.status_code == 200, (text, response.text)


def fill(value: Any, text: str) -> Any:
    """A copy with the text wherever the mark stands."""
    if isinstance(value, str):
        return value.replace("§", text)
    if isinstance(value, dict):
        return {key: fill(item, text) for key, item in value.items()}
    return [fill(item, text) for item in value] if isinstance(value, list) else value


async def test_naughty_strings_as_names_are_refused_in_the_envelope(served: Served) -> None:
    def named(text: str) -> list[dict[str, Any]]:
        tool = {"type": "function", "function": {"name": text}}
        return [
            chat(model=text),
            chat(messages=[{"role": text, "content": "x"}]),
            chat(messages=[{"role": "user", "content": [{"type": text, "text": "x"}]}]),
            chat(tools=[tool]),
            chat(tools=[], tool_choice=tool),
            chat(tool_choice=text),
            chat(reasoning_effort=text),
            chat(response_format={"type": text}),
            chat(decoder={"name": text}),
            chat(logit_bias={text or "-": 1}),
        ]

    async with served.client() as client:
        for text in naughty_strings():
            for body in named(text):
                response = await client.post(CHAT, json=body)
                if response.status_code != 200:
                    assert response.status_code in (400, 404), text
                    assert set(response.json()["error"]) == ENVELOPE


async def test_naughty_strings_are_tokenised_stored_and_filled_in_unchanged(served: Served) -> None:
    strings = naughty_strings()
    async with served.client() as client:
        for text in strings:
            ids = (await client.post("/v1/tokenize", json={"model": "nano", "prompt": text})).json()["tokens"]
            again = await client.post("/v1/detokenize", json={"model": "nano", "tokens": ids})
            assert again.json() == {"prompt": text}
            body = {"model": "nano", "prompt": text, "suffix": text, "stop": [text[:256] or "x"]}
            assert (await client.post("/v1/fim/completions", json=body)).status_code == 200, text
            report = {"request_id": text[:128] or "x", "user_action": "ignore"}
            assert (await client.post("/feedback", json=report)).json() == {"stored": True}
    lines = (served.services.config.home / "feedback.jsonl").read_text("utf-8").split("\n")[:-1]
    assert [json.loads(line)["request_id"] for line in lines] == [text[:128] or "x" for text in strings]


def echo(text: str) -> Script:
    return lambda request: spoken(request, small_tokenizer().encode(text))


# Read by chat bodies.
SUPPORTED = {"ignore_eos", "min_tokens", "prediction", "prompt_logprobs"}


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - SUPPORTED))
async def test_a_set_field_is_refused_by_name(served: Served, name: str) -> None:
    refused = await served.post("/v1/chat/completions", chat(**{name: "something else"}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    assert refused.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize("value", [None, [], {}])
async def test_empty_values_are_neutral(served: Served, value: object) -> None:
    fields = dict.fromkeys(sorted(REFUSED.keys() - SUPPORTED), value)
    assert (await served.post("/v1/chat/completions", chat(**fields))).status_code == 200


async def test_values_without_effect_are_neutral(served: Served) -> None:
    fields = {name: values[-1] for name, values in REFUSED.items() if values and name not in SUPPORTED}
    assert (await served.post("/v1/chat/completions", chat(**fields))).status_code == 200


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"chat_template_kwargs": {"enable_thinking": True}}, "medium"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "none"),
        ({"chat_template_kwargs": {"enable_thinking": None}}, None),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}, "low"),
    ],
)
def test_the_switch_of_other_servers_for_reasoning_is_an_effort(fields: dict[str, object], effort: str | None) -> None:
    assert with_effort(ChatBody.model_validate(chat(**fields))).reasoning_effort == effort


async def test_a_chat_with_the_switch_is_that_with_the_effort(served: Served) -> None:
    await served.post("/v1/chat/completions", chat(chat_template_kwargs={"enable_thinking": True}))
    await served.post("/v1/chat/completions", chat(reasoning_effort="medium"))
    await served.post("/v1/chat/completions", chat())
    switched, named, plain = (request.prompt_ids for request in served.engine.seen)
    assert switched == named != plain


async def test_other_options_of_the_chat_template_are_refused(served: Served) -> None:
    refused = await served.post("/v1/chat/completions", chat(chat_template_kwargs={"add_vision_id": True}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "chat_template_kwargs.add_vision_id"


async def test_an_unknown_field_is_ignored(served: Served) -> None:
    reply = await served.post("/v1/chat/completions", chat(frobnicate=1))
    assert reply.status_code == 200
    assert "frobnicate" in reply.json()["warning"]
