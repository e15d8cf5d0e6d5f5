"""Every bound of the wire, at the bound and one beyond it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quicksilver.server.http import fields as types
from tests.server.conftest import Served, chat

CHAT, FIM, EDIT = "/v1/chat/completions", "/v1/fim/completions", "/v1/edit/completions"


def message(**fields: object) -> dict[str, object]:
    return {"role": "user", "content": "x", **fields}


def parts(num: int) -> list[dict[str, str]]:
    return [{"type": "text", "text": "x"}] * num


def tools(num: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"tool_{i}"}} for i in range(num)]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def fim(**fields: object) -> dict[str, object]:
    return {"model": "nano", "prompt": "x", **fields}


INSIDE_AND_BEYOND = {
    "messages": (chat(messages=[message()] * 2048), chat(messages=[message()] * 2049)),
    "parts": (chat(messages=[message(content=parts(64))]), chat(messages=[message(content=parts(65))])),
    "stop strings": (chat(stop=["x"] * 4), chat(stop=["x"] * 5)),
    "stop chars": (chat(stop=["x" * 256]), chat(stop=["x" * 257])),
    "empty stop": (chat(stop=["x"]), chat(stop=[""])),
    "answers": (chat(n=8), chat(n=9)),
    "no answers": (chat(n=1), chat(n=0)),
    "top_logprobs": (chat(logprobs=True, top_logprobs=20), chat(logprobs=True, top_logprobs=21)),
    "logit_bias entries": (
        chat(logit_bias={str(i): 0 for i in range(512)}),
        chat(logit_bias={f"{i:06d}": 0 for i in range(1025)}),
    ),
    "logit_bias id": (chat(logit_bias={"511": 1}), chat(logit_bias={"512": 1})),
    "logit_bias key": (chat(logit_bias={"7": 1}), chat(logit_bias={"-7": 1})),
    "logit_bias value": (chat(logit_bias={"1": 100}), chat(logit_bias={"1": 100.5})),
    "temperature": (chat(temperature=2), chat(temperature=2.001)),
    "temperature below": (chat(temperature=0), chat(temperature=-0.001)),
    "top_p": (chat(top_p=1), chat(top_p=1.001)),
    "min_p": (chat(min_p=0), chat(min_p=-0.001)),
    "top_k": (chat(top_k=1000), chat(top_k=1001)),
    "top_k below": (chat(top_k=-1), chat(top_k=-2)),
    "presence_penalty": (chat(presence_penalty=-2), chat(presence_penalty=-2.001)),
    "frequency_penalty": (chat(frequency_penalty=2), chat(frequency_penalty=2.001)),
    "repetition_penalty": (chat(repetition_penalty=10), chat(repetition_penalty=10.001)),
    "repetition_penalty below": (chat(repetition_penalty=0.001), chat(repetition_penalty=0)),
    "max_tokens": (chat(max_tokens=1_000_000), chat(max_tokens=1_000_001)),
    "max_tokens below": (chat(max_tokens=0), chat(max_tokens=-1)),
    "min_tokens": (chat(min_tokens=0), chat(min_tokens=-1)),
    "prompt_logprobs": (chat(prompt_logprobs=20), chat(prompt_logprobs=21)),
    "max_completion_tokens": (chat(max_completion_tokens=0), chat(max_completion_tokens=-1)),
    "seed": (chat(seed=2**53), chat(seed=2**53 + 2)),
    "metadata pairs": (
        chat(metadata={str(i): "" for i in range(16)}),
        chat(metadata={str(i): "" for i in range(17)}),
    ),
    "metadata value": (chat(metadata={"a": "x" * 512}), chat(metadata={"a": "x" * 513})),
    "metadata key": (chat(metadata={"x" * 64: ""}), chat(metadata={"x" * 65: ""})),
    "user": (chat(user="x" * 512), chat(user="x" * 513)),
    "canvas_len": (chat(decoder={"canvas_len": 64}), chat(decoder={"canvas_len": 65})),
    "decoder steps": (chat(decoder={"steps": 1024}), chat(decoder={"steps": 1025})),
    "decoder threshold": (chat(decoder={"threshold": 1}), chat(decoder={"threshold": 1.1})),
    "model name": (chat(model="nano"), chat(model="x" * 257)),
}


@pytest.mark.parametrize("name", INSIDE_AND_BEYOND)
async def test_chat_bounds(served: Served, name: str) -> None:
    inside, beyond = INSIDE_AND_BEYOND[name]
    served.engine.info = roomy(served)
    assert (await served.post(CHAT, inside)).status_code == 200
    refused = await served.post(CHAT, beyond)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] is not None


def roomy(served: Served) -> Any:
    return replace(served.engine.info, context_len=10**6)


@pytest.mark.parametrize(
    ("path", "inside", "beyond"),
    [
        (FIM, fim(stop=["x"] * 16), fim(stop=["x"] * 17)),
        (FIM, fim(max_tokens=8192), fim(max_tokens=8193)),
        (FIM, fim(top_k=-1), fim(top_k=-2)),
        ("/v1/completions", fim(prompt=["x"] * 32), fim(prompt=["x"] * 33)),
        ("/v1/completions", fim(logprobs=5), fim(logprobs=6)),
        ("/v1/completions", fim(best_of=8), fim(best_of=9)),
        ("/v1/completions", fim(n=2, best_of=2), fim(n=2, best_of=1)),
        ("/v1/completions", fim(max_tokens=0), fim(max_tokens=-1)),
        ("/v1/completions", fim(prompt=[[1]] * 32), fim(prompt=[[1]] * 33)),
        ("/v1/completions", fim(prompt=[[1], [511]]), fim(prompt=[[1], [512]])),
        ("/v1/completions", fim(prompt_logprobs=20), fim(prompt_logprobs=21)),
        ("/v1/completions", fim(max_tokens=9, min_tokens=9), fim(max_tokens=9, min_tokens=10)),
        ("/v1/completions", fim(stop_token_ids=[511]), fim(stop_token_ids=[512])),
        ("/v1/completions", fim(stop_ids=[1] * 64), fim(stop_ids=[1] * 65)),
        ("/v1/completions", fim(stop_ids=[511]), fim(stop_ids=[512])),
        ("/v1/completions", fim(return_token_ids=True), fim(return_token_ids="yes")),
        ("/v1/completions", fim(allow_special_ids=False), fim(allow_special_ids=1)),
        ("/v1/responses", {"model": "nano", "input": [message()] * 64}, {"model": "nano", "input": [message()] * 2049}),
        ("/v1/detokenize", {"model": "nano", "tokens": [511]}, {"model": "nano", "tokens": [512]}),
        (
            "/feedback",
            {"request_id": "x" * 128, "user_action": "accept"},
            {"request_id": "x" * 129, "user_action": "accept"},
        ),
    ],
)
async def test_bounds_of_other_endpoints(served: Served, path: str, inside: object, beyond: object) -> None:
    assert (await served.post(path, inside)).status_code == 200
    refused = await served.post(path, beyond)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] is not None


@pytest.mark.parametrize(
    ("name", "is_fine"),
    [
        ("a", True),
        ("x" * 64, True),
        ("A-z_9", True),
        ("x" * 65, False),
        ("", False),
        ("a.b", False),
        ("a b", False),
        ("héllo", False),
        ("a\n", False),
    ],
)
async def test_tool_names(served: Served, name: str, is_fine: bool) -> None:
    body = {"model": "nano", "messages": [message()], "tools": [{"type": "function", "function": {"name": name}}]}
    response = await served.post("/v1/tokenize", body)
    assert response.status_code == (200 if is_fine else 400)


async def test_tools_and_free_json_have_bounds(served: Served) -> None:
    async def status(given: list[dict[str, Any]]) -> int:
        body = {"model": "nano", "messages": [message()], "tools": given}
        return (await served.post("/v1/tokenize", body)).status_code

    def taking(parameters: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]

    assert await status(tools(128)) == 200
    assert await status(tools(129)) == 400
    assert await status(taking(nested(types.MAX_JSON_DEPTH))) == 200
    assert await status(taking(nested(types.MAX_JSON_DEPTH + 1))) == 400
    assert await status(taking({"enum": [0] * (types.MAX_JSON_NODES - 2)})) == 200
    assert await status(taking({"enum": [0] * (types.MAX_JSON_NODES - 1)})) == 400


@pytest.mark.parametrize("number", ["1e308", "-1e308", "9007199254740993", "1e-400", "-0", "0.0", "1E2"])
async def test_unusual_numbers_are_read_or_refused_but_never_a_500(served: Served, number: str) -> None:
    for field in ("temperature", "top_p", "max_tokens", "seed", "n", "presence_penalty", "top_k"):
        raw = f'{{"model":"nano","messages":[{{"role":"user","content":"x"}}],"{field}":{number}}}'.encode()
        response = await served.post(CHAT, raw)
        assert response.status_code in (200, 400), (field, number)
        assert response.status_code == 200 or response.json()["error"]["param"] == field
