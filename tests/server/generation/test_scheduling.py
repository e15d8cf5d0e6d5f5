"""How requests wait for the engine: headers, limits, batches, and refusals."""

from __future__ import annotations

import pytest

from quicksilver.core import Delta, FinishReason, Request
from quicksilver.errors import EngineOverloaded
from tests.server.conftest import Served, chat
from tests.support.fake_engine import Step

CHAT = "/v1/chat/completions"


async def asked(served: Served, headers: dict[str, str], **fields: object) -> Request:
    reply = await served.post(CHAT, chat("hi", **fields), headers)
    assert reply.status_code == 200
    return served.engine.seen[-1]


async def test_requests_are_interactive_and_may_wait_for_the_configured_time(served: Served) -> None:
    request = await asked(served, {})
    assert (request.is_batch, request.start_within_s) == (False, 120.0)
    served.configure(start_within_s=0.0)
    assert (await asked(served, {})).start_within_s == 0


async def test_headers_lower_the_priority_and_set_the_time(served: Served) -> None:
    request = await asked(served, {"x-quicksilver-priority": "batch", "x-quicksilver-start-within": "3"})
    assert (request.is_batch, request.start_within_s) == (True, 0)
    request = await asked(served, {"x-quicksilver-priority": "interactive", "x-quicksilver-start-within": "2.5"}, n=2)
    assert (request.is_batch, request.start_within_s) == (False, 2.5)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-quicksilver-priority", "urgent"),
        ("x-quicksilver-start-within", "soon"),
        ("x-quicksilver-start-within", "0"),
        ("x-quicksilver-start-within", "-1"),
        ("x-quicksilver-start-within", "nan"),
        ("x-quicksilver-start-within", "3601"),
    ],
)
async def test_other_values_are_refused(served: Served, header: str, value: str) -> None:
    reply = await served.post(CHAT, chat("hi"), {header: value})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, header)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_overloaded_engine_is_a_503_with_the_time_to_wait(served: Served, is_streamed: bool) -> None:
    def refuse(request: Request) -> list[Step]:
        return [EngineOverloaded("this request would wait about 49 s and may wait 7 s", retry_after_s=42.0)]

    served.engine.script = refuse
    reply = await served.post(CHAT, chat("hi", stream=is_streamed))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "42")
    assert reply.json()["error"]["code"] == "engine_overloaded"


async def test_a_request_whose_time_ran_out_in_the_queue_is_a_503(served: Served) -> None:
    served.engine.script = lambda request: [
        Delta(request.id, finish=FinishReason.ERROR, error="engine_overloaded: this request could not start within 1 s")
    ]
    reply = await served.post(CHAT, chat("hi"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_overloaded")
