"""Recorded exchanges with the service we are compatible with: our replies have the same keys and types.

Only shapes are compared, since the texts are the model's. Null in a recording allows anything.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from quicksilver.constrain.validate import validate_output
from quicksilver.editing.prompts import parse_edit
from tests.server.conftest import Served, chat, events, says
from tests.support.shared_data import shared

CHAT, FIM, EDIT = "/v1/chat/completions", "/v1/fim/completions", "/v1/edit/completions"


def missing(recorded: Any, ours: Any, place: str = "reply") -> list[str]:
    """Where ours lacks a key of the recording, or has another type there."""
    if recorded is None:
        return []
    if isinstance(recorded, dict):
        if not isinstance(ours, dict):
            return [place]
        absent = [f"{place}.{key}" for key in recorded if key not in ours]
        return absent + [
            p for key in recorded if key in ours for p in missing(recorded[key], ours[key], f"{place}.{key}")
        ]
    if isinstance(recorded, list):
        if not isinstance(ours, list):
            return [place]
        pairs = zip(recorded[:1], ours[:1], strict=False)
        return [p for ours_and_theirs in pairs for p in missing(*ours_and_theirs, f"{place}[0]")]
    return [] if isinstance(ours, type(recorded)) else [f"{place}: {type(ours).__name__}"]


def probe(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(shared("wire", "probes", f"{name}.json").read_text())["data"]
    return data


async def test_model_list(served: Served) -> None:
    recorded = probe("p0-models")
    assert missing(recorded["body"], (await served.get("/v1/models")).json()) == []


async def test_latency_probe_frames(served: Served) -> None:
    for sample in probe("p1-latency")["samples"]:
        response = await served.post(CHAT, chat(stream=True, reasoning_effort=sample["effort"]))
        assert response.text.endswith("data: [DONE]\n\n") is sample["sawDone"]
        assert "usage" not in events(response)[-1]


async def test_ends_of_streams(served: Served) -> None:
    for run in probe("p2-termination")["runs"]:
        served.engine.script = says("run ok")
        fields = {"max_tokens": 3} if run["finishReason"] == "length" else {}
        chunks = events(await served.post(CHAT, chat(stream=True, **fields)))
        *contents, closing = [json.loads(frame) for frame in run["tailFrames"][:-1]]
        assert run["tailFrames"][-1] == "[DONE]"
        assert missing(closing, chunks[-1]) == []
        assert chunks[-1]["choices"][0]["finish_reason"] == run["finishReason"]
        for recorded in contents:
            recorded["choices"][0]["finish_reason"] = None
            # A null where OpenAI has no key breaks clients that ask for a list with an empty one as default.
            assert recorded["choices"][0]["delta"].pop("tool_calls") is None
            assert missing(recorded, added_up(chunks[0], chunks[1])) == []


def added_up(opening: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """The first two chunks as one: ours sends once what theirs repeats on every chunk."""
    first, second = opening["choices"][0], content["choices"][0]
    choice = {**first, **second, "delta": {**first["delta"], **second["delta"]}}
    return {**opening, **content, "choices": [choice]}


async def test_tool_fragments(served: Served) -> None:
    recorded = probe("p3-tool-fragments")
    named = {"type": "function", "function": {"name": "read_file"}}
    assert recorded["objectToolChoiceRejection"]["status"] == 400, "theirs refuses what ours takes"
    served.engine.script = says('<tool_call>{"name": "read_file", "arguments": {"path": "./a.ts"}}</tool_call>', 100)
    tool = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}
    for run in recorded["runs"]:
        chunks = events(await served.post(CHAT, chat(stream=True, tools=[tool], tool_choice=named)))
        ours = [c["choices"][0]["delta"]["tool_calls"] for c in chunks if "tool_calls" in c["choices"][0]["delta"]]
        for frame in run["toolCallFrames"]:
            assert missing(frame, ours[0]) == []
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_structured_replies(served: Served) -> None:
    for record in probe("p4-structured")["records"]:
        text = record["extractedText"] or "{}"
        is_call = "tools" in record["requestBody"]
        if is_call:
            name = record["requestBody"]["tools"][0]["function"]["name"]
            text = f'<tool_call>{{"name": "{name}", "arguments": {text}}}</tool_call>'
        served.engine.script = says(text)
        response = await served.post(CHAT, record["requestBody"])
        if record["status"] == 200:
            assert response.status_code == 200, response.text
            assert missing(json.loads(record["rawResponseText"]), response.json()) == []


async def test_usage_of_tool_calls(served: Served) -> None:
    served.engine.script = says('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    tool = {"type": "function", "function": {"name": "f"}}
    usage = (await served.post(CHAT, chat(tools=[tool], tool_choice="required"))).json()["usage"]
    for record in probe("p5-reliability")["records"]:
        assert missing(record["usage"], usage) == []


async def test_fim_candidates(served: Served) -> None:
    recorded = probe("p6-fim")["candidates"]
    assert recorded["completionsFim"]["status"] == 404, "theirs lacks what ours has"
    assert (await served.post("/v1/completions", {"model": "nano", "prompt": "x"})).status_code == 200
    assert (await served.post("/v1/edits", {})).status_code == recorded["edits"]["status"]


async def test_fim_replies(served: Served) -> None:
    for result in probe("p6b-fim-followup")["results"]:
        served.engine.script = says(result["completionText"])
        body = {"model": result["model"], "prompt": "function add(", "suffix": ""}
        response = await served.post(FIM, body)
        assert missing(json.loads(result["bodySnippet"]), response.json()) == []
        assert response.json()["choices"][0]["text"] == result["completionText"]


def edit_exchanges() -> list[Path]:
    return sorted(shared("wire", "edit-exchanges").glob("*.ndjson"))


def bodies(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [json.loads(base64.b64decode(line["body_b64"])) for line in lines if line["kind"] == kind]


async def test_edit_exchanges_have_the_recorded_shape_and_text(served: Served) -> None:
    num_exchanges = 0
    for path in edit_exchanges():
        for sent, received in zip(bodies(path, "request"), bodies(path, "response"), strict=True):
            text = received["choices"][0]["message"]["content"]
            served.engine.script = says(text.removeprefix("```\n"))
            reply = (await served.post(EDIT, sent)).json()
            assert missing(received, reply) == [], path.name
            assert reply["choices"][0]["message"]["content"] == text, path.name
            assert reply["model"] == sent["model"]
            num_exchanges += 1
    assert num_exchanges >= 18


async def test_editors_find_the_region_in_our_reply(served: Served) -> None:
    """The four parsers as they were described: each must get exactly the rewritten region."""
    for path in edit_exchanges():
        for sent in bodies(path, "request"):
            region = parse_edit(sent["messages"][0]["content"]).region
            served.engine.script = says("None")
            content = (await served.post(EDIT, sent)).json()["choices"][0]["message"]["content"]
            assert content.removeprefix("```\n").removesuffix("\n```") == region, (
                "Zed and cursortab strip exact strings"
            )
            start, end = content.index("```\n") + 4, content.rindex("\n```")
            assert content[start:end] == region, "Continue slices from the first fence to the last"
            lines = content.split("\n")
            assert (lines[0], lines[-1]) == ("```", "```"), "Kilo drops a reply whose fence does not close"


@pytest.mark.parametrize(
    ("schema", "path", "body"),
    [
        ("ChatCompletionResponse", CHAT, chat()),
        ("ChatCompletionResponse", CHAT, chat(reasoning_summary=True, n=2)),
        ("FIMCompletionResponse", FIM, {"model": "mercury-edit-2", "prompt": "x"}),
        ("ModelsResponse", "/v1/models", None),
        ("ErrorResponse", CHAT, chat(temperature=9)),
    ],
)
async def test_replies_satisfy_the_vendors_own_document(
    served: Served, schema: str, path: str, body: dict[str, Any] | None
) -> None:
    reply = await (served.get(path) if body is None else served.post(path, body))
    assert validate_output(vendor_schema(schema), reply.text) is None


async def test_chunks_satisfy_the_vendors_own_document(served: Served) -> None:
    for chunk in events(await served.post(CHAT, chat(stream=True))):
        assert validate_output(vendor_schema("ChatCompletionChunk"), json.dumps(chunk)) is None
    for chunk in events(await served.post(FIM, {"model": "mercury-edit-2", "prompt": "x", "stream": True})):
        assert validate_output(vendor_schema("TextCompletionChunk"), json.dumps(chunk)) is None


async def test_examples_of_the_vendors_own_document_are_answered(served: Served) -> None:
    num_answered = 0
    for path, operations in vendor_document()["paths"].items():
        for method, operation in operations.items():
            if method == "get":
                assert (await served.get(path)).json()["data"]
            else:
                body = operation["requestBody"]["content"]["application/json"]["example"]
                reply = await served.post(path, body)
                assert reply.status_code == 200, reply.text
                example = operation["responses"]["200"]["content"]["application/json"]["example"]
                assert missing(example, reply.json()) == []
            num_answered += 1
    assert num_answered == 7


def vendor_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(shared("wire", "mercury-openapi.json").read_text())
    return document


def vendor_schema(name: str) -> Any:
    schemas = vendor_document()["components"]["schemas"]
    text = json.dumps({"$ref": f"#/$defs/{name}", "$defs": schemas})
    return json.loads(text.replace("#/components/schemas/", "#/$defs/"))
