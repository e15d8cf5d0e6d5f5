"""Spans of replies: GenAI attributes, phases and their order, failures, disconnects."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from quicksilver.core import Delta, FinishReason, Request, Usage
from quicksilver.errors import EngineDied
from quicksilver.server.generation.reply_trace import operation_of
from quicksilver.server.http.tracing import Tracing
from tests.server.conftest import Served, chat
from tests.support.fake_engine import Step
from tests.support.trace_collector import TraceCollector

CHAT = "/v1/chat/completions"
PHASES = ["queue", "prefill", "decode"]


def timed(request: Request) -> list[Step]:
    """Two tokens, one after the other, with the times of an engine: 20 ms in the queue, 60 ms in all."""

    async def work() -> None:
        await asyncio.sleep(0.03)

    def usage(count: int, engine_s: float) -> Usage:
        counts = Usage(len(request.prompt_ids), 2, count, count, drafted=4, accepted=1, migrated=1)
        return replace(counts, queued_s=0.02, engine_s=engine_s)

    last = Delta(request.id, (66,), finish=FinishReason.STOP, usage=usage(2, 0.06))
    return [work, Delta(request.id, (65,), usage=usage(1, 0.03)), work, last]


def children(collector: TraceCollector, parent: dict[str, Any]) -> list[dict[str, Any]]:
    return [span for span in collector.spans if span["parent_id"] == parent["span_id"]]


async def spans_of(served: Served, tracing: Tracing, collector: TraceCollector, **fields: object) -> list[Any]:
    """The span of the request, of its reply, and of the phases by their start."""
    response = await served.post(CHAT, chat(**fields))
    await tracing.close()
    (request,) = [span for span in collector.spans if span["name"] == f"POST {CHAT}"]
    (reply,) = children(collector, request)
    assert response.status_code == 200
    return [request, reply, *sorted(children(collector, reply), key=lambda span: (span["start"], span["end"]))]


async def test_a_reply_has_the_attributes_of_the_conventions(
    served: Served, tracing: Tracing, collector: TraceCollector
) -> None:
    served.engine.script = timed
    _, reply, *_ = await spans_of(served, tracing, collector, max_tokens=9, temperature=0.5, seed=7)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "quicksilver",
        "gen_ai.request.model": "mercury-2",
        "gen_ai.response.model": "nano",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": False,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "quicksilver.forwards": 2,
        "quicksilver.migrated": 1,
    }
    assert reply["name"] == "chat nano"
    assert {name: reply["attributes"].get(name) for name in expected} == expected
    assert reply["attributes"]["gen_ai.usage.input_tokens"] == len(served.engine.seen[0].prompt_ids)
    assert reply["attributes"]["gen_ai.response.id"].startswith("chatcmpl-")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_phases_follow_each_other_inside_the_reply(
    served: Served, tracing: Tracing, collector: TraceCollector, is_streamed: bool
) -> None:
    served.engine.script = timed
    request, reply, *phases = await spans_of(served, tracing, collector, stream=is_streamed)
    steps = [span for span in phases if span["name"] != "stream"]
    assert [span["name"] for span in steps] == PHASES
    assert [span["name"] for span in phases if span not in steps] == ["stream"] * is_streamed
    assert [span["start"] for span in steps[1:]] == [span["end"] for span in steps[:-1]]
    assert steps[0]["start"] == reply["start"]
    assert 20e6 <= steps[0]["end"] - steps[0]["start"] < 30e6
    assert all(reply["start"] <= span["start"] <= span["end"] <= reply["end"] for span in phases)
    assert request["start"] <= reply["start"] <= reply["end"] <= request["end"]


async def test_a_failure_in_a_stream_has_its_code(served: Served, tracing: Tracing, collector: TraceCollector) -> None:
    served.engine.script = lambda request: [Delta(request.id, (65,)), EngineDied("canary")]
    _, reply, *phases = await spans_of(served, tracing, collector, stream=True)
    assert (reply["is_error"], reply["message"], reply["attributes"]["error.type"]) == (True, "", "engine_died")
    assert "gen_ai.response.finish_reasons" not in reply["attributes"]
    assert {span["name"] for span in phases} == {*PHASES, "stream"}


async def test_a_reader_that_leaves_is_not_an_error_of_the_server(
    served: Served, tracing: Tracing, collector: TraceCollector
) -> None:
    never = asyncio.Event()
    served.engine.script = lambda request: [Delta(request.id, (65,)), never.wait]
    task = asyncio.create_task(served.post(CHAT, chat(stream=True)))
    while not served.engine.num_open:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await tracing.close()
    (reply,) = [span for span in collector.spans if span["name"] == "chat nano"]
    assert reply["attributes"]["error.type"] == "client_disconnected"


async def test_several_answers_are_one_span(served: Served, tracing: Tracing, collector: TraceCollector) -> None:
    served.engine.script = timed
    _, reply, *phases = await spans_of(served, tracing, collector, n=3)
    assert reply["attributes"]["gen_ai.request.choice.count"] == 3
    assert reply["attributes"]["gen_ai.response.finish_reasons"] == ["stop"] * 3
    assert reply["attributes"]["gen_ai.usage.output_tokens"] == 6
    assert len(phases) == 3


def test_operations_are_those_of_the_routes() -> None:
    assert operation_of("/v1/chat/completions") == operation_of("/v1/messages") == operation_of("/api/chat") == "chat"
    assert operation_of("/v1/completions") == operation_of("/infill") == "text_completion"
    assert operation_of("/v1/decisions") == "decide"
