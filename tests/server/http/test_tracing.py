"""Spans of requests: W3C Trace Context in and out, names, attributes, what is never part of them."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from quicksilver.server.http.tracing import Tracing, traces_url
from tests.server.conftest import Served, chat
from tests.support.trace_collector import TraceCollector

CHAT = "/v1/chat/completions"
PARENT_TRACE, PARENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{PARENT_TRACE}-{PARENT_SPAN}-01"


def by_name(collector: TraceCollector, name: str) -> dict[str, object]:
    (span,) = [span for span in collector.spans if span["name"] == name]
    return span


async def test_a_request_continues_the_trace_of_its_traceparent(
    served: Served, tracing: Tracing, collector: TraceCollector
) -> None:
    response = await served.post(CHAT, chat(), {"traceparent": PARENT, "tracestate": "vendor=1"})
    await tracing.close()
    span = by_name(collector, f"POST {CHAT}")
    assert (span["trace_id"], span["parent_id"]) == (PARENT_TRACE, PARENT_SPAN)
    assert response.headers["traceparent"] == f"00-{PARENT_TRACE}-{span['span_id']}-01"
    assert span["attributes"]["http.route"] == CHAT
    assert span["attributes"]["http.response.status_code"] == 200
    assert span["attributes"]["quicksilver.request_id"] == response.headers["x-request-id"]
    assert collector.paths == ["/v1/traces"]
    assert collector.resources[0]["service.name"] == "quicksilver"


@pytest.mark.parametrize("bad", ["", "00-0-0-01", f"ff-{PARENT_TRACE}-{PARENT_SPAN}-01", "x" * 9000, "\xff"])
async def test_a_malformed_traceparent_begins_a_new_trace(served: Served, tracing: Tracing, bad: str) -> None:
    async with served.client() as client:
        response = await client.get("/v1/models", headers={b"traceparent": bad.encode("latin-1")})
    assert response.status_code == 200
    assert response.headers["traceparent"].split("-")[1] not in (PARENT_TRACE, "0" * 32)


async def test_a_traceparent_that_comes_twice_is_ignored(served: Served, tracing: Tracing) -> None:
    async with served.client() as client:
        response = await client.get("/v1/models", headers=[("traceparent", PARENT), ("traceparent", PARENT)])
    assert response.headers["traceparent"].split("-")[1] != PARENT_TRACE


async def test_a_parent_that_is_not_sampled_is_passed_on_and_not_exported(
    served: Served, tracing: Tracing, collector: TraceCollector
) -> None:
    response = await served.post(CHAT, chat(), {"traceparent": PARENT.removesuffix("01") + "00"})
    await tracing.close()
    assert response.headers["traceparent"].split("-")[1::2] == [PARENT_TRACE, "00"]
    assert collector.spans == []


async def test_the_log_line_has_the_trace_id(
    served: Served, tracing: Tracing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quicksilver")
    await served.post(CHAT, chat(), {"traceparent": PARENT})
    record = next(record for record in caplog.records if record.getMessage() == "request")
    assert record.trace_id == PARENT_TRACE


async def test_without_tracing_there_is_no_header_and_no_trace_id(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quicksilver")
    response = await served.post(CHAT, chat(), {"traceparent": PARENT})
    record = next(record for record in caplog.records if record.getMessage() == "request")
    assert "traceparent" not in response.headers
    assert not hasattr(record, "trace_id")


async def test_probes_are_not_traced(served: Served, tracing: Tracing, collector: TraceCollector) -> None:
    for path in ("/health", "/ready"):
        assert "traceparent" not in (await served.get(path)).headers
    await tracing.close()
    assert collector.spans == []


async def test_a_failure_has_its_status_and_no_text(
    served: Served, tracing: Tracing, collector: TraceCollector
) -> None:
    served.engine.script = lambda request: [RuntimeError("canary-answer")]
    assert (await served.post(CHAT, chat())).status_code == 500
    await tracing.close()
    span = by_name(collector, f"POST {CHAT}")
    assert (span["is_error"], span["message"], span["events"]) == (True, "", 0)
    assert span["attributes"]["error.type"] == "500"


async def test_spans_hold_no_path_prompt_answer_or_key(
    served: Served, tracing: Tracing, collector: TraceCollector
) -> None:
    key = {"authorization": "Bearer qs-canary-key", "x-canary": "canary"}
    await served.post(CHAT, chat("canary-prompt", stop=["canary-stop"], metadata={"canary": "1"}), key)
    await served.post(CHAT, chat("canary-prompt", stream=True), key)
    await served.post(CHAT, chat("canary-prompt", temperature="canary-field"), key)
    await served.post(CHAT, {**chat("canary-prompt"), "model": "canary-model"}, key)
    await served.post(CHAT, b"canary-body", key)
    await served.get("/canary-path?canary=1", key)
    served.engine.script = lambda request: [RuntimeError("canary-answer")]
    await served.post(CHAT, chat("canary-prompt", stream=True), key)
    await tracing.close()
    names = [span["name"] for span in collector.spans]
    assert names.count(f"POST {CHAT}") == 6
    assert "GET unmatched" in names
    assert b"canary" not in b"".join(collector.bodies)


async def test_a_collector_that_is_down_costs_no_request_and_bounds_the_end(served: Served) -> None:
    tracing = Tracing.to_collector("http://127.0.0.1:9")
    served.app.state.services = replace(served.services, tracing=tracing)
    assert (await served.post(CHAT, chat())).status_code == 200
    began = time.monotonic()
    await tracing.close()
    assert time.monotonic() - began < 60  # it returns


def test_the_address_of_a_collector_gets_the_standard_path_once() -> None:
    assert traces_url("http://c:4318") == traces_url("http://c:4318/v1/traces/") == "http://c:4318/v1/traces"
