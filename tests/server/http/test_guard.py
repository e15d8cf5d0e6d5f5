"""Every path is answered in the error envelope, with an id and a log line; keys, and what each dependency requires."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.requests import Request

from quicksilver.accounts.identity import Scope
from quicksilver.core import Delta
from quicksilver.errors import NotFound, PermissionDenied, QuicksilverError
from quicksilver.server.http.connections import TRUST
from quicksilver.server.http.guard import (
    BATCH_CALLER,
    LONG_BODY_BYTES,
    MAX_KEY_CHARS,
    Caller,
    accounts_of,
    bearer_of,
    caller_of,
    identity_of,
    require_admin,
    require_inference,
    require_key,
    require_metrics,
)
from tests.server.asgi import Call
from tests.server.conftest import Served, chat
from tests.support.bank import Bank

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


def request_to(served: Served | None = None, headers: dict[str, str] | None = None, **scope: Any) -> Request:
    pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    app = served.app if served else None
    return Request({"type": "http", "method": "POST", "path": "/", "headers": pairs, "app": app, "state": {}, **scope})


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"authorization": "Basic abc"}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "abc", "x-api-key": "def"}, None),
        ({"x-api-key": "def"}, "def"),
        ({"x-api-key": ""}, None),
        ({}, None),
        ({"x-api-key": "k" * MAX_KEY_CHARS}, "k" * MAX_KEY_CHARS),
        ({"x-api-key": "k" * (MAX_KEY_CHARS + 1)}, None),
    ],
)
def test_the_key_is_in_one_of_two_headers(headers: dict[str, str], key: str | None) -> None:
    assert bearer_of(request_to(headers=headers)) == key


async def test_without_accounts_every_caller_is_one_tenant(served: Served) -> None:
    request = request_to(served)
    await require_inference(request)
    assert caller_of(request) == Caller(None)
    assert caller_of(request).tenant == ""
    for read in (accounts_of, identity_of):
        with pytest.raises(NotFound, match="--accounts"):
            read(request)


async def test_a_connection_is_trusted_after_authentication_only(bank: Bank) -> None:
    trusted: list[bool] = []
    scope = {TRUST: lambda: trusted.append(True)}
    with pytest.raises(QuicksilverError):
        await require_key(request_to(bank.served, {"x-api-key": "wrong"}, **scope))
    assert trusted == []
    await require_key(request_to(bank.served, await bank.key(), **scope))
    assert trusted == [True]


async def test_a_line_of_a_batch_has_the_caller_of_the_batch(bank: Bank) -> None:
    request = request_to(bank.served, **{BATCH_CALLER: Caller()})
    await require_key(request)
    assert caller_of(request) == Caller()


async def test_each_scope_opens_its_routes(bank: Bank) -> None:
    usage = await bank.key(scopes=frozenset({Scope.USAGE}))
    with pytest.raises(PermissionDenied):
        await require_inference(request_to(bank.served, usage))
    for require in (require_admin, require_metrics):
        with pytest.raises(PermissionDenied):
            await require(request_to(bank.served, usage))
    await require_metrics(request_to(bank.served, await bank.key(scopes=frozenset({Scope.METRICS}))))


async def test_an_admin_key_is_limited_to_its_tenant_on_the_main_listener(bank: Bank) -> None:
    key = await bank.key(scopes=frozenset({Scope.ADMIN, Scope.INFERENCE}))
    request = request_to(bank.served, key)
    await require_key(request)
    assert Scope.ADMIN not in identity_of(request).scopes
    await require_admin(admin := request_to(bank.served, key))
    assert Scope.ADMIN in identity_of(admin).scopes


async def test_a_long_body_needs_credit_before_it_is_read(bank: Bank) -> None:
    key = await bank.key(credits=0)
    await require_inference(request_to(bank.served, {**key, "content-length": str(LONG_BODY_BYTES)}))
    await require_inference(request_to(bank.served, key))  # without a body
    lengths = ({"content-length": length} for length in (str(LONG_BODY_BYTES + 1), "9" * 40))
    for headers in (*lengths, {"transfer-encoding": "chunked"}):
        with pytest.raises(QuicksilverError, match="balance is spent"):
            await require_inference(request_to(bank.served, {**key, **headers}))
    replay = {**key, "content-length": str(LONG_BODY_BYTES + 1), "idempotency-key": "a"}
    await require_inference(request_to(bank.served, replay))
