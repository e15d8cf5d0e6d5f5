"""The small routes: probes, model lists, tokens, feedback, metrics, the document."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest

from quicksilver.errors import EngineDied
from quicksilver.server.admin_app import build_admin_app
from tests.server.conftest import HELLO, Served, chat
from tests.support.small_tokenizer import small_tokenizer


async def test_health_is_about_this_process_and_ready_about_the_engine(served: Served) -> None:
    assert (await served.get("/ready")).json() == {"status": "ready", "model": "nano", "running": 0, "waiting": 0}
    served.engine.is_ready = False
    assert (await served.get("/health")).json() == {"status": "ok"}
    response = await served.get("/ready")
    assert (response.status_code, response.json()["status"]) == (503, "starting")


async def test_model_lists_name_capabilities(served: Served) -> None:
    async def names(path: str) -> list[str]:
        return [entry["id"] for entry in (await served.get(path)).json()["data"]]

    everything = await names("/v1/models")
    assert everything[0] == "nano"
    assert {"mercury-2", "mercury-2.5", "mercury", "mercury-edit-2", "mercury-coder"} <= set(everything)
    assert "mercury-edit-2" not in await names("/v1/chat/completions/models")
    for path in ("/v1/fim/completions/models", "/v1/edit/completions/models", "/v1/apply/completions/models"):
        assert "mercury-edit-2" in await names(path)
        assert "mercury-2" not in await names(path)


async def test_a_model_entry_has_context_and_price(served: Served) -> None:
    entry = (await served.get("/v1/models/mercury-2")).json()
    assert (entry["id"], entry["object"], entry["context_length"]) == ("mercury-2", "model", 4096)
    assert set(entry["pricing"]) == {"prompt", "completion", "input_cache_reads", "input_cache_writes"}
    assert (await served.get("/v1/models/inception/mercury-2")).json()["id"] == "inception/mercury-2"


async def test_an_unknown_model_suggests_a_name(served: Served) -> None:
    response = await served.post("/v1/chat/completions", chat(model="mercury-22"))
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "mercury-2" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/fim/completions", "/v1/completions", "/v1/edit/completions"]
)
async def test_every_mercury_name_is_taken_and_echoed(served: Served, path: str) -> None:
    region = "<|code_to_edit|>\nx\n<|/code_to_edit|>"
    for model in served.services.directory.names:
        body = {"model": model, "prompt": "x", "messages": [{"role": "user", "content": region}]}
        assert (await served.post(path, body)).json()["model"] == model


async def test_text_survives_tokenize_and_detokenize(served: Served) -> None:
    for text in (HELLO, "<|im_start|>user\n", "\x00\x1f", "a" * 1000):
        ids = (await served.post("/v1/tokenize", {"model": "nano", "prompt": text})).json()["tokens"]
        assert (await served.post("/v1/detokenize", {"model": "nano", "tokens": ids})).json() == {"prompt": text}


async def test_tokenize_counts_what_a_chat_would_cost(served: Served) -> None:
    body = chat("Hi")
    usage = (await served.post("/v1/chat/completions", body)).json()["usage"]
    reply = (await served.post("/v1/tokenize", body)).json()
    assert (reply["count"], reply["max_model_len"]) == (usage["prompt_tokens"], 4096)
    special = set(small_tokenizer().special_tokens.values())
    assert special & set(reply["tokens"])


@pytest.mark.parametrize("fields", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}])
async def test_tokenize_takes_either_prompt_or_messages(served: Served, fields: dict[str, object]) -> None:
    assert (await served.post("/v1/tokenize", {"model": "nano", **fields})).status_code == 400


async def test_feedback_is_kept_line_by_line(served: Served) -> None:
    for action in ("accept", "reject", "ignore"):
        body = {"request_id": "cmpl-1", "provider_name": "zed", "user_action": action, "provider_version": "1"}
        response = await served.post("/feedback", body)
        assert (response.status_code, response.json()) == (200, {"stored": True})
    path = served.services.config.home / "feedback.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["user_action"] for line in lines] == ["accept", "reject", "ignore"]
    assert (path.stat().st_mode & 0o777) == 0o600


async def test_metrics_count_requests_tokens_and_engine_figures(served: Served) -> None:
    await served.post("/v1/chat/completions", chat())
    await served.post("/v1/chat/completions", chat(n=0))
    text = await scrape(served)
    route = 'route="/v1/chat/completions"'
    assert f'quicksilver_http_requests_total{{{route},status="200"}} 1.0' in text
    assert f'quicksilver_http_requests_total{{{route},status="400"}} 1.0' in text
    assert 'quicksilver_request_success_total{finished_reason="stop"} 1.0' in text
    assert "quicksilver_time_to_first_token_seconds_count 1.0" in text
    assert "quicksilver_num_requests_running 0.0" in text
    assert "quicksilver_kv_cache_usage 0.0" in text


async def test_metrics_do_not_grow_with_paths_that_callers_invent(served: Served) -> None:
    for i in range(20):
        await served.get(f"/invented/{i}")
        await served.get(f"/v1/models/invented-{i}")
    text = await scrape(served)
    assert "invented" not in text
    assert 'route="unmatched",status="404"} 20.0' in text


async def test_metrics_answer_while_the_engine_is_dead(served: Served) -> None:
    async def dead() -> None:
        raise EngineDied("gone")

    served.engine.stats = dead
    assert "quicksilver_http_requests_open" in await scrape(served)


async def test_the_admin_listener_answers_to_its_own_names_only(served: Served) -> None:
    transport = httpx.ASGITransport(app=build_admin_app(served.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/metrics", headers={"host": "evil.example"})).status_code == 421
        assert (await client.get("/metrics", headers={"origin": "http://evil.example"})).status_code == 403
        assert (await client.get("/v1/models")).json()["error"]["code"] == "not_found"
        served.services.open_requests.is_draining = True
        assert (await client.get("/metrics")).status_code == 200


async def scrape(served: Served) -> str:
    transport = httpx.ASGITransport(app=build_admin_app(served.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.get("/metrics")).text


async def test_the_document_has_every_served_path_and_body(served: Served) -> None:
    document = (await served.get("/openapi.json")).json()
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/models/{name}", "/v1/tokenize", "/feedback", "/ready"):
        assert path in document["paths"]
    for path, operations in document["paths"].items():
        if "post" in operations:
            schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
            name = schema["$ref"].rsplit("/", 1)[-1]
            assert name in document["components"]["schemas"], path


async def test_card_fields_are_the_operators(served: Served) -> None:
    card = replace(served.services.config.card, id="mine", country_code="NO", created=7)
    served.configure(card=card)
    entry = (await served.get("/v1/models/mine")).json()
    assert (entry["created"], entry["datacenters"]) == (7, [{"country_code": "NO"}])
