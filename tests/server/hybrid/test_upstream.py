"""The client of an upstream, against a real socket."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from quicksilver.core import FinishReason, Usage
from quicksilver.errors import UpstreamFailed
from quicksilver.server.hybrid import upstream as upstream_module
from quicksilver.server.hybrid.policy import TokenPrices, UpstreamSettings
from quicksilver.server.hybrid.upstream import AnswerEvents, CallPart, UpstreamClient, UpstreamEvent
from tests.support.fake_upstream import Answer, FakeUpstream, Fault


def settings(url: str, **changes: Any) -> UpstreamSettings:
    fields = {"idle_s": 0.2, "retries": 0, **changes}
    return UpstreamSettings(name="strong", url=url, model="big", price=TokenPrices(input=1, output=1), **fields)


async def read(client: UpstreamClient, body: dict[str, Any] | None = None) -> list[UpstreamEvent]:
    async with aclosing(client.stream(body or {"messages": []})) as events:
        return [event async for event in events]


async def fails(client: UpstreamClient) -> UpstreamFailed:
    with pytest.raises(UpstreamFailed) as raised:
        await read(client)
    return raised.value


async def test_an_answer_arrives_in_pieces_with_its_usage() -> None:
    async with FakeUpstream() as upstream:
        client = UpstreamClient(settings(upstream.url), "secret")
        events = await read(client, {"messages": [], "model": "big"})
        await client.close()
    assert "".join(event.content for event in events) == "Paris, says the upstream."
    assert events[-1] == UpstreamEvent(finish=FinishReason.STOP, usage=Usage(7, 2, 5))
    assert upstream.bodies == [{"messages": [], "model": "big"}]
    assert "authorization: Bearer secret" in upstream.heads[0]
    assert upstream.heads[0].startswith("POST /v1/chat/completions ")


async def test_tool_calls_are_read() -> None:
    deltas = (
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":1}'}}]},
    )
    async with FakeUpstream(lambda body: Answer(deltas=deltas, finish="tool_calls", usage=None)) as upstream:
        client = UpstreamClient(settings(upstream.url))
        events = await read(client)
        await client.close()
    assert [call for event in events for call in event.calls] == [CallPart(0, "look", ""), CallPart(0, "", '{"x":1}')]
    assert events[-1] == UpstreamEvent(finish=FinishReason.STOP)
    assert "authorization" not in upstream.heads[0]


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
async def test_every_fault_becomes_one_error(fault: Fault) -> None:
    async with FakeUpstream(lambda body: Answer(fault=fault)) as upstream:
        client = UpstreamClient(settings(upstream.url))
        error = await fails(client)
        await client.close()
    assert error.message.startswith(("strong ", "the connection to strong"))
    assert error.is_refusal == (fault is Fault.REFUSED)
    assert (error.asked_wait_s is not None) == (fault is Fault.LIMITED)


async def test_a_bad_gateway_is_tried_again_before_the_first_piece() -> None:
    async with FakeUpstream() as upstream:
        upstream.script = lambda body: Answer(fault=Fault.BAD_GATEWAY if len(upstream.bodies) < 3 else Fault.NONE)
        client = UpstreamClient(settings(upstream.url, retries=2))
        assert (await read(client))[-1].finish is FinishReason.STOP
        await client.close()
    assert len(upstream.bodies) == 3


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LIMITED, Fault.CUT, Fault.TIMEOUT])
async def test_other_faults_are_not_tried_again(fault: Fault) -> None:
    async with FakeUpstream(lambda body: Answer(fault=fault)) as upstream:
        client = UpstreamClient(settings(upstream.url, retries=2))
        await fails(client)
        await client.close()
    assert len(upstream.bodies) == 1


async def test_a_refused_connection_is_an_error() -> None:
    async with FakeUpstream() as upstream:
        url = upstream.url
    client = UpstreamClient(settings(url, retries=1))
    assert "cannot be reached" in (await fails(client)).message
    await client.close()


async def test_the_breaker_spares_a_failing_upstream() -> None:
    async with FakeUpstream(lambda body: Answer(fault=Fault.BROKEN)) as upstream:
        client = UpstreamClient(settings(upstream.url, max_failures=3))
        messages = [(await fails(client)).message for _ in range(5)]
        await client.close()
    assert len(upstream.bodies) == 3
    assert "failed often" in messages[3]


async def test_refusals_of_requests_do_not_open_the_breaker() -> None:
    async with FakeUpstream(lambda body: Answer(fault=Fault.REFUSED)) as upstream:
        client = UpstreamClient(settings(upstream.url, max_failures=1))
        for _ in range(3):
            await fails(client)
        await client.close()
    assert len(upstream.bodies) == 3


async def test_retry_after_is_honoured() -> None:
    async with FakeUpstream(lambda body: Answer(fault=Fault.LIMITED, retry_after="60")) as upstream:
        client = UpstreamClient(settings(upstream.url))
        assert (await fails(client)).asked_wait_s == 60
        await fails(client)
        await client.close()
    assert len(upstream.bodies) == 1


async def test_a_closed_stream_frees_the_trial_of_the_breaker() -> None:
    async with FakeUpstream() as upstream:
        client = UpstreamClient(settings(upstream.url, max_failures=1, open_s=0.01))
        upstream.script = lambda body: Answer(fault=Fault.LIMITED, retry_after="0")
        await fails(client)
        await asyncio.sleep(0.02)
        upstream.script = lambda body: Answer()
        async with aclosing(client.stream({})) as events:
            await anext(events)
        assert (await read(client))[-1].finish is FinishReason.STOP
        await client.close()


async def test_size_and_time_of_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeUpstream() as upstream:
        slow = UpstreamClient(settings(upstream.url, total_s=1e-9))
        assert "too long" in (await fails(slow)).message
        await slow.close()
        monkeypatch.setattr(upstream_module, "MAX_LINE_BYTES", 3)
        upstream.script = lambda body: Answer(fault=Fault.GARBAGE)
        client = UpstreamClient(settings(upstream.url))
        assert "line that is too long" in (await fails(client)).message
        monkeypatch.setattr(upstream_module, "MAX_TOTAL_BYTES", 3)
        assert "too much" in (await fails(client)).message
        await client.close()


async def test_a_redirect_is_not_followed() -> None:
    async with FakeUpstream(lambda body: Answer(fault=Fault.BROKEN)) as upstream:
        client = UpstreamClient(settings(upstream.url))
        assert client._client.follow_redirects is False
        assert client._client.trust_env is False
        await client.close()


@pytest.mark.parametrize(
    "line",
    [
        b"data: 1",
        b"data: {}",
        b'data: {"choices": 3}',
        b'data: {"choices": [3]}',
        b'data: {"choices": [{"delta": {"content": 3}}]}',
        b'data: {"choices": [{"delta": {"tool_calls": 1}}]}',
        b'data: {"choices": [{"delta": {"tool_calls": {"index": 0}}}]}',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 1, "function": {"name": "f"}}]}}]}',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {}}]}}]}',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": -1, "function": {"name": "f"}}]}}]}',
        b'data: {"choices": [], "error": {}}',
        b"<html>",
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="no chat completion"):
        AnswerEvents("strong").read(line)


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": -1, "completion_tokens": 1}, {"prompt_tokens": True, "completion_tokens": 1}]
)
def test_a_usage_that_makes_no_sense_is_ignored(usage: dict[str, Any]) -> None:
    import orjson

    events = AnswerEvents("strong")
    chunk = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}
    assert events.read(b"data: " + orjson.dumps(chunk)) is None
    assert events.end().usage is None
