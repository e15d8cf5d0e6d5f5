"""Ollama's API: chat and generate as lines of JSON, and the lists of models."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from quicksilver.core import Delta, FinishReason, Request, TokenLogprob, Usage
from quicksilver.errors import EngineDied
from tests.server.conftest import Served, says
from tests.server.test_services import add_models
from tests.support.fake_engine import Step
from tests.support.small_tokenizer import small_tokenizer

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def lines_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a stream, or the one object of a whole reply."""
    return [json.loads(line) for line in response.text.splitlines()]


async def test_a_chat_is_streamed_unless_it_is_refused(served: Served) -> None:
    served.engine.script = says("Hello world", piece_len=3)
    streamed = lines(await served.post("/api/chat", {"model": "nano:latest", "messages": HI}))
    assert "".join(line["message"]["content"] for line in streamed) == "Hello world"
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    whole = (await served.post("/api/chat", {"model": "nano", "messages": HI, "stream": False})).json()
    assert whole["message"] == {"role": "assistant", "content": "Hello world"}
    for reply in (streamed[-1], whole):
        assert (reply["done"], reply["done_reason"], reply["eval_count"]) == (True, "stop", len("Hello world"))
        assert reply["total_duration"] >= reply["prompt_eval_duration"] >= 0


async def test_options_reach_the_engine(served: Served) -> None:
    options = {
        "num_predict": 7,
        "temperature": 0.5,
        "top_k": 9,
        "seed": 3,
        "stop": ["x"],
        "repeat_penalty": 1.1,
        "num_ctx": 9,
    }
    await served.post("/api/chat", {"messages": HI, "stream": False, "options": options})
    params = served.engine.seen[0].params
    assert (params.max_new_tokens, params.temperature, params.top_k, params.seed) == (7, 0.5, 9, 3)
    assert params.repetition_penalty == 1.1


async def test_tool_calls_have_objects_as_arguments(served: Served) -> None:
    served.engine.script = says('<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>')
    body = {"messages": HI, "tools": [TOOL]}
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    whole = (await served.post("/api/chat", {**body, "stream": False})).json()
    assert whole["message"]["tool_calls"] == [call]
    streamed = lines(await served.post("/api/chat", body))
    assert [line["message"]["tool_calls"] for line in streamed if "tool_calls" in line["message"]] == [[call]]
    history = [
        *HI,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_name": "weather"},
    ]
    assert (await served.post("/api/chat", {**body, "messages": history, "stream": False})).status_code == 200


async def test_thinking_is_a_field_of_its_own(served: Served) -> None:
    served.engine.script = says("Hmm.</think>Hello")
    reply = (await served.post("/api/chat", {"messages": HI, "think": True, "stream": False})).json()
    assert (reply["message"]["thinking"], reply["message"]["content"]) == ("Hmm.", "Hello")


@pytest.mark.parametrize("form", ["json", {"type": "object", "properties": {"a": {"type": "integer"}}}])
async def test_a_format_constrains_the_answer(served: Served, form: object) -> None:
    served.engine.script = says('{"a": 1}')
    reply = (await served.post("/api/chat", {"messages": HI, "format": form, "stream": False})).json()
    assert json.loads(reply["message"]["content"]) == {"a": 1}
    assert served.engine.seen[0].constraint is not None


async def test_generate(served: Served) -> None:
    served.engine.script = says("Hello")
    assert (await served.post("/api/generate", {"prompt": "Hi", "system": "Be brief.", "stream": False})).json()[
        "response"
    ] == "Hello"
    await served.post("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."}, *HI]})
    assert served.engine.seen[0].prompt_ids == served.engine.seen[1].prompt_ids
    streamed = lines(await served.post("/api/generate", {"prompt": "Hi", "raw": True}))
    assert "".join(line["response"] for line in streamed) == "Hello"
    await served.post("/v1/completions", {"prompt": "Hi"})
    assert served.engine.seen[2].prompt_ids == served.engine.seen[3].prompt_ids
    await served.post("/api/generate", {"prompt": "a = ", "suffix": "\n", "stream": False})
    await served.post("/v1/fim/completions", {"prompt": "a = ", "suffix": "\n"})
    assert served.engine.seen[4].prompt_ids == served.engine.seen[5].prompt_ids


@pytest.mark.parametrize(("path", "field"), [("/api/chat", "message"), ("/api/generate", "response")])
async def test_an_empty_request_only_loads_the_model(served: Served, path: str, field: str) -> None:
    reply = (await served.post(path, {"model": "nano"})).json()
    assert (reply["done"], reply["done_reason"], field in reply, served.engine.seen) == (True, "load", True, [])


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("keep_alive", [0, "0", "5m", -1])
async def test_keep_alive_unloads_nothing_and_does_not_say_so(served: Served, path: str, keep_alive: int | str) -> None:
    served.engine.script = says("Hello")
    empty = await served.post(path, {"model": "nano", "keep_alive": keep_alive})
    assert (empty.status_code, empty.json()["done_reason"]) == (200, "load")
    body = {"messages": HI, "prompt": "Hi", "stream": False, "keep_alive": keep_alive}
    assert (await served.post(path, body)).json()["done_reason"] == "stop"
    assert [model["name"] for model in (await served.get("/api/ps")).json()["models"]] == ["nano"]


async def test_lists(served: Served) -> None:
    listed = (await served.get("/api/tags")).json()["models"]
    assert {"nano", "mercury-2"} <= {model["name"] for model in listed}
    shown = (await served.post("/api/show", {"model": "nano:latest"})).json()
    assert shown["model_info"]["fake.context_length"] == 4096
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert (await served.post("/api/show", {"name": "mercury-2"})).status_code == 200
    assert (await served.get("/api/version")).json()["version"]


async def test_models_that_were_never_loaded_are_listed(served: Served) -> None:
    engines = add_models(served, {"nano": "edit"}, {})
    listed = {model["name"]: model for model in (await served.get("/api/tags")).json()["models"]}
    assert {"nano", "edit", "big"} <= listed.keys()
    assert (listed["big"]["digest"], listed["big"]["details"]["family"]) == ("", "")
    assert listed["nano"]["details"]["family"] == "fake"
    (running,) = (await served.get("/api/ps")).json()["models"]
    assert (running["name"], running["context_length"], running["size_vram"]) == ("nano", 4096, 0)
    assert not engines["big"].is_loaded
    assert (await served.post("/api/show", {"name": "big"})).status_code == 200
    assert engines["big"].is_loaded


async def test_an_infill_is_answered_by_the_model_for_code(served: Served) -> None:
    engines = add_models(served, {"nano": "edit"}, {})
    await served.post("/api/generate", {"prompt": "a = ", "suffix": "\n", "stream": False})
    assert (len(engines["edit"].seen), served.engine.seen) == (1, [])


async def test_every_stop_string_ends_the_answer(served: Served) -> None:
    served.engine.script = says("Hello world")
    options = {"stop": ["q1", "q2", "q3", "q4", "q5", " w"]}
    for path, field in (("/api/chat", {"messages": HI}), ("/api/generate", {"prompt": "Hi"})):
        reply = (await served.post(path, {**field, "options": options, "stream": False})).json()
        assert (reply["message"]["content"] if "message" in reply else reply["response"]) == "Hello"


async def test_a_raw_template_is_an_infill(served: Served) -> None:
    marked = "<|fim_prefix|>a = <|fim_suffix|>\n<|fim_middle|>"
    await served.post("/api/generate", {"prompt": marked, "raw": True, "stream": False})
    await served.post("/v1/fim/completions", {"prompt": "a = ", "suffix": "\n"})
    assert served.engine.seen[0].prompt_ids == served.engine.seen[1].prompt_ids


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "tool", "content": "x", "tool_name": "a\nb"}]}),
        ("/api/chat", {"messages": HI, "options": {"mirostat": 1}}),
        ("/api/generate", {"prompt": "x", "options": {"typical_p": 0.5}}),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}),
        ("/api/generate", {"prompt": "x", "context": [1, 2]}),
    ],
)
async def test_what_cannot_be_honoured_is_refused(served: Served, path: str, body: dict[str, Any]) -> None:
    assert (await served.post(path, body)).status_code == 400
    assert served.engine.seen == []


async def test_neutral_options_are_accepted(served: Served) -> None:
    options = {"mirostat": 0, "typical_p": 1.0, "tfs_z": 1, "num_ctx": 4096}
    body = {"prompt": "x", "options": options, "template": "", "context": [], "stream": False}
    assert (await served.post("/api/generate", body)).status_code == 200


async def test_errors_are_text(served: Served) -> None:
    missing = await served.post("/api/chat", {"model": "llama9", "messages": HI})
    assert missing.status_code == 404
    assert "llama9" in missing.json()["error"]
    images = await served.post("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]})
    assert images.status_code == 400
    served.engine.script = lambda request: [Delta(request.id, (70,)), EngineDied("the worker died")]
    streamed = lines(await served.post("/api/chat", {"messages": HI}))
    assert "worker" in streamed[-1]["error"]


async def test_a_stream_has_the_log_probabilities_of_the_whole_answer(served: Served) -> None:
    def script(request: Request) -> list[Step]:
        ids = small_tokenizer().encode("a👋b")
        scored = [Delta(request.id, (token,), (TokenLogprob(token, -0.5, ()),)) for token in ids]
        return [*scored, Delta(request.id, (), finish=FinishReason.STOP, usage=Usage(1, 0, len(ids)))]

    served.engine.script = script
    for path, body in (("/api/chat", {"messages": HI}), ("/api/generate", {"prompt": "Hi", "raw": True})):
        whole = (await served.post(path, {**body, "logprobs": True, "stream": False})).json()
        streamed = lines(await served.post(path, {**body, "logprobs": True}))
        assert [entry for line in streamed for entry in line.get("logprobs", ())] == whole["logprobs"]
        assert len(whole["logprobs"]) == 6


@pytest.mark.parametrize(("path", "field"), [("/api/chat", "messages"), ("/api/generate", "prompt")])
async def test_null_is_an_empty_request(served: Served, path: str, field: str) -> None:
    reply = await served.post(path, {"model": "nano", field: None})
    assert (reply.status_code, reply.json()["done_reason"]) == (200, "load")


async def test_a_call_with_a_large_integer_comes_back(served: Served) -> None:
    served.engine.script = says(f'<tool_call>{{"name": "weather", "arguments": {{"id": {2**60}}}}}</tool_call>')
    body = {"tools": [TOOL], "stream": False}
    answer = (await served.post("/api/chat", {**body, "messages": HI})).json()["message"]
    assert answer["tool_calls"][0]["function"]["arguments"] == {"id": 2**60}
    result = {"role": "tool", "content": "sunny", "tool_name": "weather"}
    assert (await served.post("/api/chat", {**body, "messages": [*HI, answer, result]})).status_code == 200


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_durations_tell_the_prompt_from_the_answer(served: Served, is_streamed: bool) -> None:
    served.engine.script = says("Hello", piece_len=1)
    reply = lines_of(await served.post("/api/chat", {"messages": HI, "stream": is_streamed}))[-1]
    assert 0 < reply["prompt_eval_duration"] < reply["total_duration"]
    assert reply["eval_duration"] > 0


@pytest.mark.parametrize(
    ("path", "body", "advice"),
    [
        ("/api/chat", {"messages": [{**HI[0], "images": ["eA=="]}]}, "leave the images out"),
        ("/api/generate", {"prompt": "x", "images": ["eA=="]}, "leave the images out"),
        ("/api/generate", {"prompt": "x", "context": [1]}, "/api/chat"),
        ("/api/chat", {"messages": HI, "think": "max"}, "'low', 'medium' or 'high'"),
    ],
)
async def test_a_refusal_says_what_to_do(served: Served, path: str, body: dict[str, Any], advice: str) -> None:
    refused = await served.post(path, body)
    assert refused.status_code == 400
    assert advice in refused.json()["error"]


async def test_an_empty_suffix_is_none(served: Served) -> None:
    """Ollama's own client sends every text field, empty where it is not used."""
    unused = {"suffix": "", "system": "", "template": "", "options": None, "stream": False}
    served.engine.script = says("Hello")
    assert (await served.post("/api/generate", {"prompt": "Hi", **unused})).json()["response"] == "Hello"
    await served.post("/v1/chat/completions", {"messages": HI})
    assert served.engine.seen[0].prompt_ids == served.engine.seen[1].prompt_ids
    assert (await served.post("/api/generate", {"prompt": "", **unused})).json()["done_reason"] == "load"


@pytest.mark.parametrize("fields", [{"raw": True}, {}])
async def test_a_negative_num_predict_sets_no_limit(served: Served, fields: dict[str, Any]) -> None:
    for num in (-1, -2):
        body = {"prompt": "Hi", "stream": False, "options": {"num_predict": num}, **fields}
        assert (await served.post("/api/generate", body)).status_code == 200
    for request in served.engine.seen:
        assert request.params.max_new_tokens == 4096 - len(request.prompt_ids)
