"""A thousand requests against an upstream that fails in every way: no avoidable error, an exact ledger, no leak."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import httpx
import orjson
import pytest

from quicksilver.accounts.identity import OPERATOR
from quicksilver.core import Request
from tests.server.conftest import chat
from tests.server.hybrid.conftest import SURE, UNSURE, UPSTREAM_PRICE, HybridServed, answers, rows_of
from tests.support.bank import PRICE, Bank
from tests.support.fake_engine import Step
from tests.support.fake_upstream import Answer, Fault
from tests.support.small_tokenizer import small_tokenizer

NUM_REQUESTS, NUM_PARALLEL = 1000, 40
FAULTS = (Fault.NONE, Fault.TIMEOUT, Fault.LIMITED, Fault.BROKEN, Fault.CUT, Fault.GARBAGE, Fault.RESET)
MODELS = ("auto:best", "auto", "auto:cheap")
SECRET, OPEN = "confidential", "public"


def number_of(text: str) -> int:
    found = re.search(r"request (\d+)", text)
    assert found is not None
    return int(found[1])


def upstream_script(body: dict[str, Any]) -> Answer:
    number = number_of(body["messages"][0]["content"])
    return Answer(fault=FAULTS[number % len(FAULTS)], retry_after="0", text="from the upstream")


def engine_script(request: Request) -> list[Step]:
    """Every second request is sure of its answer."""
    number = number_of(small_tokenizer().decode(request.prompt_ids))
    return answers("from here", SURE if number % 2 else UNSURE)(request)


def request_body(number: int, word: str) -> dict[str, Any]:
    is_streamed = number % 5 < 2
    options = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
    return chat(f"{word} request {number}", model=MODELS[number % len(MODELS)], max_tokens=20, **options)


def legs_in(response: httpx.Response) -> list[dict[str, Any]] | None:
    """The legs of a complete reply; None for a stream that ended with an error."""
    if response.headers["content-type"] == "application/json":
        return list(response.json()["usage"]["quicksilver"]["legs"])
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]
    if lines[-1] != "[DONE]":
        assert orjson.loads(lines[-1])["error"]["code"] == "upstream_failed"
        return None
    return list(orjson.loads(lines[-2])["usage"]["quicksilver"]["legs"])


def cost_of(leg: dict[str, Any]) -> int:
    if leg["outcome"] not in ("answered", "escalated"):
        return 0
    prompt, cached, completion = (leg[f"{kind}_tokens"] for kind in ("prompt", "cached", "completion"))
    if leg["target"] == "nano":
        return int((prompt - cached) * PRICE + cached * PRICE // 10 + completion * PRICE)
    price = UPSTREAM_PRICE
    return (prompt - cached) * price["input"] + cached * price["cached_input"] + completion * price["output"]


@pytest.mark.parametrize(
    ("settings", "has_breaker"),
    [
        ({"retries": 0, "max_failures": 10**6}, False),
        ({"max_failures": 10**6}, False),
        ({}, True),
        # It opens and tries again many times.
        ({"open_s": 0.05}, True),
    ],
    ids=["one try", "default retries", "default retries and breaker", "short breaker"],
)
async def test_a_thousand_requests_against_a_faulty_upstream(
    hybrid: HybridServed, bank: Bank, settings: dict[str, Any], has_breaker: bool
) -> None:
    keys = {word: await bank.key(credits=10**9) for word in (SECRET, OPEN)}
    await bank.accounts.admin(lambda admin: _consent_of_last(admin, bank))
    await hybrid.change_upstream(idle_s=0.25, **settings)
    hybrid.upstream.script, hybrid.served.engine.script = upstream_script, engine_script
    replies: dict[int, httpx.Response] = {}
    left = iter(range(NUM_REQUESTS))

    async def work(client: httpx.AsyncClient) -> None:
        for number in left:
            word = (SECRET, OPEN)[number // 7 % 2]
            replies[number] = await client.post(
                "/v1/chat/completions", json=request_body(number, word), headers=keys[word]
            )

    async with hybrid.served.client() as client, asyncio.TaskGroup() as group:
        for _ in range(NUM_PARALLEL):
            group.create_task(work(client))

    assert Counter(reply.status_code for reply in replies.values()) == {200: NUM_REQUESTS}
    expected, num_cut = 0, 0
    for number, reply in replies.items():
        legs = legs_in(reply)
        if legs is None:
            # Words of the upstream were delivered before it cut its answer off; only a stream can end like this.
            num_cut += 1
            assert FAULTS[number % len(FAULTS)] is Fault.CUT
            expected += _escalated_cost(reply, number)
            continue
        expected += sum(map(cost_of, legs))
        assert [leg["outcome"] for leg in legs].count("answered") == 1
    assert num_cut < NUM_REQUESTS // 50
    assert num_cut > 0 or has_breaker
    assert any("is not called for a while" in reply.text for reply in replies.values()) is has_breaker
    rows = await rows_of(bank)
    assert sum(row.cost for row in rows) == expected
    assert {row.state for row in rows} == {"settled", "released"}
    assert len({row.request_id for row in rows}) == len(rows) > NUM_REQUESTS
    settled = Counter(row.model for row in rows if row.state == "settled")
    assert settled["strong"] == sum(_is_answered_by_upstream(reply) for reply in replies.values())
    assert SECRET.encode() not in hybrid.upstream.received
    assert OPEN.encode() in hybrid.upstream.received


def _is_answered_by_upstream(reply: httpx.Response) -> bool:
    return "strong=answered" in reply.headers["x-quicksilver-route"] and legs_in(reply) is not None


def _escalated_cost(reply: httpx.Response, number: int) -> int:
    """Of a stream without legs: what the escalated answer of this server cost."""
    if "nano=escalated" not in reply.headers["x-quicksilver-route"]:
        return 0
    tokenizer = small_tokenizer()
    return (_num_prompt_tokens(number) + len(tokenizer.encode("from here"))) * PRICE


def _num_prompt_tokens(number: int) -> int:
    from quicksilver.text.chat import ChatTemplate, Message

    template = ChatTemplate.own(small_tokenizer())
    word = (SECRET, OPEN)[number // 7 % 2]
    return len(template.render([Message("user", f"{word} request {number}")]).ids)


def _consent_of_last(admin: Any, bank: Bank) -> None:
    for project in admin.organizations.list_accounts(OPERATOR, "project", bank.org_id):
        admin.organizations.set_may_leave(OPERATOR, project.id, True)
