"""Every path is answered in the error envelope, with an id and a log line."""

from __future__ import annotations

import logging

import pytest

from quicksilver.core import Delta
from tests.server.asgi import Call
from tests.server.conftest import Served, chat

EDIT = "/v1/edit/completions"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "//v1/models", "/v1/..;/models", "/V1/models", "/metrics"])
async def test_unknown_paths_have_the_envelope(served: Served, path: str) -> None:
    response = await served.get(path)
    if path == "/":
        assert response.status_code == 200
        return
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
    assert "/openapi.json" in response.json()["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE"])
async def test_other_methods_are_a_405_that_names_the_right_one(served: Served, method: str) -> None:
    async with served.client() as client:
        response = await client.request(method, EDIT)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


async def test_a_405_names_every_method_of_the_path(served: Served) -> None:
    async with served.client() as client:
        response = await client.request("PUT", "/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST, GET")


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("host", ["localhost", "localhost:8480", "127.0.0.1", "127.0.0.1:1", "[::1]:8480", "LOCALHOST"])
async def test_our_own_names_are_answered(served: Served, host: str) -> None:
    assert (await served.get("/health", {"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost@evil", "", "a b", "localhost/x"]
)
async def test_other_names_are_not(served: Served, host: str) -> None:
    response = await served.get("/health", {"host": host})
    assert response.status_code == 421
    assert response.json()["error"]["code"] == "host_not_served"
    assert "--allow-host" in response.json()["error"]["message"]


async def test_a_star_answers_to_every_name(served: Served) -> None:
    served.configure(hosts=("*",))
    assert (await served.get("/health", {"host": "anything.example"})).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://localhost:1"]
)
async def test_foreign_pages_may_not_call(served: Served, origin: str) -> None:
    response = await served.post(CHAT, chat(), {"origin": origin})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "origin_not_allowed"
    assert "--allow-origin" in response.json()["error"]["message"]
    assert "access-control-allow-origin" not in response.headers
    assert served.engine.seen == []


async def test_our_own_page_may(served: Served) -> None:
    response = await served.post(CHAT, chat(), {"origin": "http://localhost", "host": "localhost"})
    assert response.status_code == 200


async def test_listed_origins_may_and_get_cors_headers(served: Served) -> None:
    served.configure(origins=("https://app.example",))
    response = await served.post(CHAT, chat(), {"origin": "https://app.example"})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    assert response.headers["access-control-expose-headers"] == "*"
    assert (await served.post(CHAT, chat(), {"origin": "https://other.example"})).status_code == 403


async def test_pages_of_listed_origins_can_read_a_refusal_of_the_guard(served: Served) -> None:
    served.configure(origins=("https://app.example",), max_open=0)
    for origin in ("https://app.example", "http://localhost"):
        response = await served.post(CHAT, chat(), {"origin": origin})
        allowed = "https://app.example" if origin == "https://app.example" else None
        assert (response.status_code, response.headers.get("access-control-allow-origin")) == (503, allowed)


async def test_header_bounds(served: Served) -> None:
    served.configure(num_headers=20, header_bytes=2000)
    async with served.client() as client:
        num_own = len(client.build_request("GET", "/health").headers)
        fill = {f"x-{i}": "v" for i in range(20 - num_own)}
        assert (await client.get("/health", headers=fill)).status_code == 200
        assert (await client.get("/health", headers={**fill, "x-more": "v"})).status_code == 431
        assert (await client.get("/health", headers={"x-big": "v" * 2000})).status_code == 431


@pytest.mark.parametrize("name", ["host", "authorization", "content-length"])
async def test_headers_that_decide_may_come_once(served: Served, name: str) -> None:
    call = Call(served.app, CHAT, chat(), {"authorization": "Bearer a"})
    value = dict(call._scope["headers"])[name.encode()]
    call._scope["headers"].append((name.encode(), value))
    call.start()
    await call.finish()
    assert call.sent[0]["status"] == 400


async def test_beyond_the_cap_on_open_requests_there_is_a_503_but_probes_answer(served: Served) -> None:
    served.configure(max_open=0)
    response = await served.post(CHAT, chat())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "server_overloaded")
    assert response.headers["retry-after"] == "1"
    assert (await served.get("/health")).status_code == 200


async def test_every_reply_has_an_id_of_our_making(served: Served) -> None:
    first = await served.get("/health", {"x-request-id": "chosen-by-caller"})
    second = await served.get("/nowhere")
    ids = {first.headers["x-request-id"], second.headers["x-request-id"]}
    assert len(ids) == 2
    assert all(i.startswith("req_") for i in ids)


async def test_log_lines_link_the_request_to_its_reply(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quicksilver")
    response = await served.post(CHAT, chat(), {"x-stainless-retry-count": "2"})
    record = next(record for record in caplog.records if record.getMessage() == "request")
    assert record.request_id == response.headers["x-request-id"]
    assert (record.reply_id, record.retry, record.status) == (response.json()["id"], 2, 200)


async def test_log_lines_hold_no_prompt_answer_or_key(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = {"authorization": "Bearer qs-canary-key"}
    served.engine.script = lambda r: [RuntimeError("canary-answer")]
    await served.post(CHAT, chat("canary-prompt"), key)
    await served.post(CHAT, chat("canary-prompt", stream=True), key)
    await served.post(CHAT, chat("canary-prompt", temperature="canary-field"), key)
    await served.post(CHAT, b"canary-body", key)
    await served.get("/canary-path?canary=1", key)
    lines = [f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name.startswith("quick")]
    assert len(lines) >= 5
    assert not any("canary" in line for line in lines)


async def test_refusals_have_the_route_that_would_have_answered(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quicksilver")
    served.services.open_requests.is_draining = True
    for path in (CHAT, "/v1/responses/resp_1", "/nowhere"):
        assert (await served.get(path)).status_code == 503
    assert (await served.post(CHAT, chat())).status_code == 503
    assert (await served.get("/health", {"host": "other.example"})).status_code == 421
    routes = [record.route for record in caplog.records if record.getMessage() == "request"]
    assert routes == [CHAT, "/v1/responses/{response_id}", "unmatched", CHAT, "/health"]
    text = served.services.metrics.render([]).decode()
    assert f'quicksilver_http_requests_total{{route="{CHAT}",status="503"}} 2.0' in text


async def test_an_unexpected_error_inside_a_stream_is_logged_with_the_id_of_the_reply(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.engine.script = lambda r: [Delta(r.id, (65,)), RuntimeError("canary")]
    response = await served.post(CHAT, chat(stream=True))
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("unexpected RuntimeError")
    assert f'"id":"{record.reply_id}"' in response.text
    assert "canary" not in response.text


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/openapi.json", "/v1/models/nano"])
async def test_a_head_request_is_answered_as_get_without_a_body(served: Served, path: str) -> None:
    async with served.client() as client:
        got, head = await client.get(path), await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    varying = ("x-request-id", "request-id", "openai-processing-ms")
    assert [h for h in head.headers.items() if h[0] not in varying] == [
        h for h in got.headers.items() if h[0] not in varying
    ]


async def test_a_head_request_to_an_unknown_path_is_a_404(served: Served) -> None:
    async with served.client() as client:
        assert (await client.head("/v1/nothing")).status_code == 404
