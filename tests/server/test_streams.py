"""Many streams at once: each gets its own answer, byte for byte."""

from __future__ import annotations

import asyncio
import json

from quicksilver.core import Request
from tests.server.asgi import Call
from tests.server.conftest import Served, chat
from tests.support.fake_engine import Step, spoken
from tests.support.small_tokenizer import small_tokenizer

CHAT = "/v1/chat/completions"


def echo_marker(request: Request) -> list[Step]:
    """Says the marker of its own prompt again and again."""
    prompt = small_tokenizer().decode(request.prompt_ids)
    at = prompt.rindex("#")
    return spoken(request, small_tokenizer().encode(prompt[at : at + 4] * 10), piece_len=4)


async def test_two_hundred_streams_do_not_mix(served: Served) -> None:
    served.engine.script = echo_marker
    calls = [Call(served.app, CHAT, chat(f"#{i:03x}", stream=True)) for i in range(200)]
    for call in calls:
        call.start()
    await asyncio.gather(*(call.finish() for call in calls))
    for i, call in enumerate(calls):
        lines = [line[6:] for line in call.text.split("\n\n") if line.startswith("data: {")]
        deltas = [json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines]
        assert "".join(deltas) == f"#{i:03x}" * 10
        assert call.text.endswith("data: [DONE]\n\n")
    assert served.engine.num_finished == 200
