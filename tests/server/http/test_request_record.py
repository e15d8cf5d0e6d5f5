"""The log line and the count of every request."""

from __future__ import annotations

import logging

import pytest

from quicksilver.server.http.metrics import render
from tests.server.conftest import Served, chat

CHAT = "/v1/chat/completions"


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
    text = render(served.services.metrics, []).decode()
    assert f'quicksilver_http_requests_total{{route="{CHAT}",status="503"}} 2.0' in text
