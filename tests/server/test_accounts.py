"""Keys, limits and the ledger, through HTTP: which requests are accepted, and what each is charged."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.records import Limits
from quicksilver.accounts.service import Accounts
from quicksilver.core import Delta
from quicksilver.errors import EngineDied
from quicksilver.server.generation import billing, respond
from tests.server.asgi import Call
from tests.server.conftest import HELLO, Served, chat, content_of, events
from tests.support.bank import Bank
from tests.support.fake_engine import spoken

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer qs-wrong", "Basic cXM6", "Bearer ' OR 1=1 --", "Bearer " + "x" * 600],
)
async def test_without_a_valid_key_only_public_paths_answer(bank: Bank, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    for path in ("/v1/models", "/v1/models/nano", "/v1/chat/completions/models"):
        assert (await bank.served.get(path, headers)).status_code == 401
    paths = ("chat/completions", "completions", "fim/completions", "edit/completions", "apply/completions")
    for path in (*paths, "responses", "tokenize", "detokenize"):
        response = await bank.served.post(f"/v1/{path}", b"not even read", headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    for path in ("/health", "/ready", "/", "/playground/about", "/openapi.json"):
        assert (await bank.served.get(path, headers)).status_code == 200


async def test_every_route_but_the_public_ones_requires_a_key(bank: Bank) -> None:
    public = {"/health", "/ready", "/feedback", "/", "/assets/{name}", "/playground/about", "/openapi.json"}
    document = (await bank.served.get("/openapi.json")).json()
    async with bank.served.client() as client:
        for path, operations in document["paths"].items():
            for method in operations:
                response = await client.request(method, path.replace("{name}", "x"), content=b"{}")
                assert (response.status_code == 401) is (path not in public), (method, path)


async def test_an_answer_is_charged_once_for_what_it_used(bank: Bank) -> None:
    key = await bank.key()
    usage = (await bank.served.post(CHAT, chat(), key)).json()["usage"]
    assert await bank.spent() == usage["total_tokens"]
    streamed = events(await bank.served.post(CHAT, chat(stream=True, n=2), key))
    assert content_of([c for c in streamed if c["choices"][0]["index"] == 1]) == HELLO
    assert await bank.spent() == 2 * usage["total_tokens"] + len(HELLO.encode())


async def test_tenants_salt_the_cache(bank: Bank) -> None:
    await bank.served.post(CHAT, chat(), await bank.key())
    await bank.served.post(CHAT, chat(), await bank.key())
    first, second = (request.tenant for request in bank.served.engine.seen)
    assert first
    assert second
    assert first != second


async def test_a_scope_that_is_missing_is_a_403(bank: Bank) -> None:
    key = await bank.key(scopes=frozenset({Scope.USAGE}))
    assert (await bank.served.post(CHAT, chat(), key)).status_code == 403
    assert (await bank.served.get("/v1/models", key)).status_code == 200


async def test_spent_credit_is_a_429_without_retry(bank: Bank) -> None:
    key = await bank.key(credits=10)
    response = await bank.served.post(CHAT, chat(max_tokens=50), key)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "insufficient_quota")
    assert response.headers["x-should-retry"] == "false"
    assert bank.served.engine.seen == []


async def test_rate_limits_show_in_headers_and_refuse_with_retry_after(bank: Bank) -> None:
    key = await bank.key(limits=Limits(requests=2))
    first = await bank.served.post(CHAT, chat(), key)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    assert (await bank.served.post(CHAT, chat(stream=True), key)).headers["x-ratelimit-remaining-requests"] == "0"
    refused = await bank.served.post(CHAT, chat(), key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-should-retry"] == "true"


async def test_a_request_that_the_server_fails_is_free(bank: Bank) -> None:
    key = await bank.key()
    bank.served.engine.script = lambda r: [*spoken(r, range(97, 110))[:2], EngineDied("gone")]
    assert (await bank.served.post(CHAT, chat(), key)).status_code == 503
    assert "[DONE]" not in (await bank.served.post(CHAT, chat(stream=True), key)).text
    bank.served.engine.is_ready = False
    assert (await bank.served.post(CHAT, chat(), key)).status_code == 503
    assert (await bank.served.post(CHAT, chat(temperature=9), key)).status_code == 400
    assert await bank.spent() == 0


async def test_an_interrupted_stream_is_charged_for_delivered_tokens(bank: Bank) -> None:
    key = await bank.key()
    said = asyncio.Event()

    async def note() -> None:
        said.set()

    bank.served.engine.script = lambda r: [*(Delta(r.id, (97,)) for _ in range(5)), note, asyncio.Event().wait]
    call = Call(bank.served.app, CHAT, chat(stream=True), key)
    call.start()
    await said.wait()
    await call.wait_for_sent(7)
    call.hang_up()
    await call.finish()
    num_prompt = len(bank.served.engine.seen[0].prompt_ids)
    assert await bank.spent() == (num_prompt // 10) + 5, "a prompt whose cached share is unknown costs as if cached"


async def test_a_stream_is_checkpointed_after_every_chunk(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next process finds is the last checkpoint: it lags by no more than the chunk that was being sent."""
    key = await bank.key()
    noted = asyncio.Event()
    marks: list[int] = []
    checkpoint = bank.accounts.checkpoint

    async def watched(request_id: str, on_wire: int, cached: int | None = None) -> None:
        await checkpoint(request_id, on_wire, cached)
        marks.append(on_wire)
        noted.set()

    async def until_noted() -> None:
        await noted.wait()
        noted.clear()

    monkeypatch.setattr(bank.accounts, "checkpoint", watched)
    monkeypatch.setattr(billing, "CHECKPOINT_BACKOFF", 0)
    pieces = [step for _ in range(5) for step in (Delta, until_noted)]
    bank.served.engine.script = lambda r: (
        [Delta(r.id, (97,)) if step is Delta else step for step in pieces] + [asyncio.Event().wait]
    )
    call = Call(bank.served.app, CHAT, chat(stream=True), key)
    call.start()
    await call.wait_for_sent(7)
    while len(marks) < 5:
        await asyncio.sleep(0.001)
    call.hang_up()
    await call.finish()
    assert marks == [1, 2, 3, 4, 5]


async def test_a_disconnect_before_the_first_token_is_free(bank: Bank) -> None:
    key = await bank.key()
    bank.served.engine.script = lambda r: [asyncio.Event().wait]
    for stream in (True, False):
        call = Call(bank.served.app, CHAT, chat(stream=stream), key)
        call.start()
        while not bank.served.engine.num_open:
            await asyncio.sleep(0.001)
        call.hang_up()
        await call.finish()
    assert await bank.spent() == 0


async def test_the_same_idempotency_key_gets_the_same_bytes_for_one_charge(bank: Bank) -> None:
    key = {**await bank.key(), "idempotency-key": "abc"}
    first = await bank.served.post(CHAT, chat(), key)
    again = await bank.served.post(CHAT, chat(), key)
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert await bank.spent() == first.json()["usage"]["total_tokens"]
    other = await bank.served.post(CHAT, chat("another"), key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")
    assert (await bank.served.post(CHAT, chat(), {**key, "idempotency-key": "x" * 256})).status_code == 400


async def test_the_same_idempotency_key_in_flight_is_a_409(bank: Bank) -> None:
    key = {**await bank.key(), "idempotency-key": "abc"}
    go_on = asyncio.Event()
    script = bank.served.engine.script
    bank.served.engine.script = lambda r: [go_on.wait, *script(r)]
    first = asyncio.create_task(bank.served.post(CHAT, chat(), key))
    while not bank.served.engine.num_open:
        await asyncio.sleep(0.001)
    second = await bank.served.post(CHAT, chat(), key)
    assert (second.status_code, second.headers["x-should-retry"]) == (409, "true")
    go_on.set()
    assert (await first).status_code == 200


@pytest.mark.parametrize("extra", [{}, {"stream_options": {"include_usage": True}}, {"choice": ["a", "b"]}])
async def test_a_stream_is_replayed_byte_for_byte_for_one_charge(bank: Bank, extra: dict[str, object]) -> None:
    key = {**await bank.key(), "idempotency-key": "abc"}
    body = chat(stream=True, **extra)
    first = await bank.served.post(CHAT, body, key)
    spent = await bank.spent()
    again = await bank.served.post(CHAT, body, key)
    assert again.content == first.content
    assert again.text.endswith("data: [DONE]\n\n")
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["idempotent-replayed"] == "true"
    assert 0 < spent == await bank.spent()
    assert (await bank.served.post(CHAT, chat(**extra), key)).status_code == 422


async def test_a_responses_stream_is_replayed_too(bank: Bank) -> None:
    key = {**await bank.key(), "idempotency-key": "abc"}
    body = {"model": "nano", "input": "Hi", "stream": True}
    first = await bank.served.post("/v1/responses", body, key)
    again = await bank.served.post("/v1/responses", body, key)
    assert again.content == first.content
    assert "response.completed" in again.text
    assert len(bank.served.engine.seen) == 1


async def test_a_failed_or_interrupted_stream_may_be_sent_again(bank: Bank) -> None:
    key = {**await bank.key(), "idempotency-key": "abc"}
    good = bank.served.engine.script
    bank.served.engine.script = lambda r: [*spoken(r, range(97, 110))[:2], EngineDied("gone")]
    assert "engine_died" in (await bank.served.post(CHAT, chat(stream=True), key)).text
    assert await bank.spent() == 0
    bank.served.engine.script = lambda r: [Delta(r.id, (97,)), asyncio.Event().wait]
    call = Call(bank.served.app, CHAT, json.dumps(chat(stream=True)).encode(), key)
    call.start()
    await call.wait_for_sent(3)
    assert (await bank.served.post(CHAT, chat(stream=True), key)).status_code == 409
    call.hang_up()
    await call.finish()
    bank.served.engine.script = good
    assert content_of(events(await bank.served.post(CHAT, chat(stream=True), key))) == HELLO


async def test_a_stream_too_long_to_record_is_generated_again(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond, "MAX_RECORDED_BYTES", 100)
    key = {**await bank.key(), "idempotency-key": "abc"}
    for _ in range(2):
        reply = await bank.served.post(CHAT, chat(stream=True), key)
        assert content_of(events(reply)) == HELLO
        assert "idempotent-replayed" not in reply.headers


async def test_a_revoked_key_ends_its_open_stream(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing, "KEY_CHECK_S", 0.0)
    key = await bank.key()
    revoked = asyncio.Event()

    async def revoke() -> None:
        await bank.accounts.admin(lambda admin: admin.organizations.disable(OPERATOR, bank.org_id))
        revoked.set()

    async def pause() -> None:
        await asyncio.sleep(0.01)

    def script(request: Any) -> list[Any]:
        return [
            Delta(request.id, (97,)),
            revoke,
            *[step for _ in range(300) for step in (pause, Delta(request.id, (97,)))],
        ]

    bank.served.engine.script = script
    response = await bank.served.post(CHAT, chat(stream=True), key)
    assert '"code":"invalid_api_key"' in response.text.split("\n\n")[-2]
    assert "[DONE]" not in response.text


UNCLEAR_UPDATE = (
    "<|original_code|>\ndef a():\n    return 1\n<|/original_code|>\n"
    "<|update_snippet|>\nx = compute()\nif x:\n    launch(x)\n<|/update_snippet|>"
)


async def test_every_paid_route_is_charged(bank: Bank) -> None:
    key = await bank.key()
    region = "<|code_to_edit|>\nx\n<|/code_to_edit|>"
    user = [{"role": "user", "content": region}]
    total = 0
    for path, body in (
        ("fim/completions", {"prompt": "a"}),
        ("completions", {"prompt": ["a", "b"]}),
        ("edit/completions", {"messages": user}),
        ("apply/completions", {"messages": [{"role": "user", "content": UNCLEAR_UPDATE}]}),
        ("chat/completions", {"messages": user, "choice": ["a", "b"]}),
        ("chat/completions", {"messages": user, "choice": ["a", "b"], "stream": True}),
        ("responses", {"input": "x"}),
    ):
        before = await bank.spent()
        response = await bank.served.post(f"/v1/{path}", {"model": "nano", **body}, key)
        assert response.status_code == 200, response.text
        total = await bank.spent()
        assert total > before, path


async def test_a_stream_ends_after_an_outage_of_the_database_and_is_charged(served: Served, tmp_path: Path) -> None:
    config = AccountsConfig(tmp_path / "pepper", heartbeat_s=0.05, lock_wait_s=0.1)
    accounts = await Accounts.open(f"sqlite:///{tmp_path}/outage.db", config)
    bank = Bank(accounts, served)
    key = await bank.key()
    other = sqlite3.connect(tmp_path / "outage.db", 20, isolation_level=None, check_same_thread=False)

    async def lock() -> None:
        await asyncio.to_thread(other.execute, "BEGIN EXCLUSIVE")
        while accounts.is_writable:
            await asyncio.sleep(0.01)

    served.engine.script = lambda request: [lock, *spoken(request, list(HELLO.encode()))]
    reply = asyncio.create_task(served.post(CHAT, chat(stream=True), key))
    async with asyncio.timeout(60):
        while served.engine.num_finished == 0:
            await asyncio.sleep(0.01)
        refused = await served.post(CHAT, chat(), key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "ledger_unavailable")
        assert not reply.done()
        other.execute("ROLLBACK")
        streamed = events(await reply)
    other.close()
    assert content_of(streamed) == HELLO
    assert await bank.spent() == len(served.engine.seen[0].prompt_ids) + len(HELLO.encode())
    await accounts.close()
