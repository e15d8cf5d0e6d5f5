"""What is sent to an upstream, and how its events become the pieces of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.core import FinishReason, Usage
from quicksilver.errors import OutputInvalid
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.hybrid.answer import EventReader, UpstreamAnswer, plan_upstream, upstream_body
from quicksilver.server.hybrid.policy import TokenPrices, UpstreamSettings
from quicksilver.server.hybrid.upstream import CallPart, UpstreamClient, UpstreamEvent
from quicksilver.text.answer import CollectedAnswer, Finished
from tests.server.conftest import Served, chat
from tests.server.hybrid.conftest import SURE, UNSURE, HybridServed, answers
from tests.support.small_tokenizer import small_tokenizer

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def body(**fields: Any) -> ChatBody:
    messages = [{"role": "user", "content": "Hello", "name": "ann", "reasoning_content": "secret thought"}]
    return ChatBody.model_validate({"model": "auto", "messages": messages, **fields})


def test_only_listed_fields_are_sent() -> None:
    given = body(
        temperature=0.5,
        tools=[TOOL],
        user="someone",
        metadata={"a": "b"},
        store=True,
        realtime=True,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    )
    sent = upstream_body(given, "big", 99, draft="maybe")
    assert sent == {
        "model": "big",
        "messages": [{"role": "user", "content": "Hello", "name": "ann"}],
        "max_tokens": 99,
        "temperature": 0.5,
        "tools": [TOOL],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        "stream": True,
        "stream_options": {"include_usage": True},
        "prediction": {"type": "content", "content": "maybe"},
    }


def test_an_effort_of_this_server_has_a_name_elsewhere() -> None:
    assert upstream_body(body(reasoning_effort="instant"), "big", 9)["reasoning_effort"] == "minimal"
    assert upstream_body(body(reasoning_effort="high"), "big", 9)["reasoning_effort"] == "high"


def upstream_plan(served: Served, **fields: Any) -> ReplyPlan:
    settings = UpstreamSettings(name="s", url="http://h/v1", model="m", price=TokenPrices(input=1, output=1))
    return plan_upstream(body(**fields), UpstreamClient(settings), served.services)


def test_sampling_fields_that_are_not_sent_are_named_in_a_warning(served: Served) -> None:
    plan = upstream_plan(served, top_k=40, min_p=0.1, repetition_penalty=1.1)
    assert plan.warning == "ignored fields: top_k, min_p, repetition_penalty"
    assert upstream_plan(served, top_k=-1, min_p=0.0, repetition_penalty=1.0).warning is None


def planned(served: Served, **fields: Any) -> UpstreamAnswer:
    answer = upstream_plan(served, **fields).answers[0]
    assert isinstance(answer, UpstreamAnswer)
    return answer


def collect(answer: UpstreamAnswer, *events: UpstreamEvent) -> CollectedAnswer:
    reader, collected = EventReader(answer, small_tokenizer()), CollectedAnswer()
    for event in events:
        for piece in reader.read(event):
            collected.add(piece)
    return collected


def test_events_become_content_reasoning_and_calls(served: Served) -> None:
    found = collect(
        planned(served, tools=[TOOL]),
        UpstreamEvent(reasoning="hm"),
        UpstreamEvent(content="Hi"),
        UpstreamEvent(calls=(CallPart(0, "look", '{"a"'),)),
        UpstreamEvent(calls=(CallPart(0, "", ":1}"),)),
        UpstreamEvent(finish=FinishReason.STOP, usage=Usage(9, 1, 4)),
    )
    assert (found.reasoning, found.content) == ("hm", "Hi")
    assert [(call.name, call.arguments) for call in found.calls] == [("look", '{"a":1}')]
    assert found.finished == Finished(FinishReason.STOP, Usage(9, 1, 4), num_calls=1)


def test_without_a_usage_tokens_are_counted_here(served: Served) -> None:
    answer = planned(served)
    found = collect(answer, UpstreamEvent(content="Hello there"), UpstreamEvent(finish=FinishReason.LENGTH))
    assert found.finished.usage.completion_tokens == len(small_tokenizer().encode("Hello there"))
    assert 0 < found.finished.usage.prompt_tokens == answer.num_prompt_tokens < answer.max_prompt_tokens


def test_an_answer_that_breaks_its_schema_is_an_error(served: Served) -> None:
    answer = planned(served, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}})
    end = UpstreamEvent(finish=FinishReason.STOP)
    assert collect(answer, UpstreamEvent(content='{"a": 1}'), end).content == '{"a": 1}'
    with pytest.raises(OutputInvalid):
        collect(answer, UpstreamEvent(content='{"a": "x"}'), end)


def test_the_token_limit_is_that_of_the_request(served: Served) -> None:
    assert planned(served, max_completion_tokens=12).body["max_tokens"] == 12
    assert planned(served).body["max_tokens"] == served.services.config.card.max_output_len


async def test_only_an_answer_of_an_upstream_names_the_fields_that_it_did_not_receive(hybrid: HybridServed) -> None:
    body = chat(model="auto", top_k=40, min_p=0.1)
    hybrid.served.engine.script = answers("London", UNSURE)
    reply = (await hybrid.served.post("/v1/chat/completions", body)).json()
    assert reply["warning"] == "ignored fields: top_k, min_p"
    assert not hybrid.upstream.bodies[0].keys() & {"top_k", "min_p"}
    hybrid.served.engine.script = answers("Paris", SURE)
    assert (await hybrid.served.post("/v1/chat/completions", body)).json().get("warning") is None
