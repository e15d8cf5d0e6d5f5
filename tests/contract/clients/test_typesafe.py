"""TypeSafe's SDK: typed questions at /v1/systemone."""

from __future__ import annotations

import asyncio

import pytest
from conftest import Server
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, Score, TypeSafeClient, TypeSafeError

QUESTIONS = {
    "sport": Noul(instructions="Is the text about sport?"),
    "topic": Choice(instructions="What is the topic?", criteria={"sport": None, "food": None, "music": None}),
    "urgency": Score(instructions="How urgent is it?", criteria=["Can wait", "Today"]),
}


def test_questions(server: Server) -> None:
    with TypeSafeClient(base_url=server.url, api_key="none") as client:
        reply = client.system_one(state="The match ended 3:1.", questions=QUESTIONS, model="nano")
    assert 0 <= reply.nouls["sport"].noul <= 1
    assert set(reply.choices["topic"].probabilities) == {"sport", "food", "music"}
    assert 0 <= reply.scores["urgency"].score <= 1
    assert sum(reply.scores["urgency"].probabilities.values()) == pytest.approx(1)
    assert reply.usage.input_tokens


def test_refusal(server: Server) -> None:
    with TypeSafeClient(base_url=server.url, api_key="none") as client, pytest.raises(TypeSafeError):
        client.system_one(state="x", questions=QUESTIONS, model="gpt-9")


async def test_abort(server: Server) -> None:
    many = {f"q{i}": Noul(instructions=f"Does the text contain the number {i}?") for i in range(400)}
    with server.expecting_an_abort():
        async with AsyncTypeSafeClient(base_url=server.url, api_key="none") as client:
            asking = asyncio.create_task(client.system_one(state="One two three. " * 200, questions=many, model="nano"))
            while not (server.figure("num_requests_running") or asking.done()):
                await asyncio.sleep(0.02)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
