"""Clients that disconnect, stall or read slowly: the engine's slots are returned and nothing is queued for them."""

from __future__ import annotations

import asyncio
import random

import pytest

from quicksilver.core import Delta, FinishReason, Frame, Request, Usage
from tests.server.asgi import Call
from tests.server.conftest import Served, chat
from tests.support.fake_engine import Step, spoken
from tests.support.small_tokenizer import small_tokenizer

CHAT = "/v1/chat/completions"


def endless(request: Request) -> list[Step]:
    """Tokens for a while, then silence: only an abort ends it."""
    silence = asyncio.Event()
    return [*(Delta(request.id, (97,)) for _ in range(50)), silence.wait]


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "n": 3}, {"n": 2}])
async def test_a_disconnect_aborts_every_answer(served: Served, fields: dict[str, object]) -> None:
    served.engine.script = endless
    call = Call(served.app, CHAT, chat(**fields))
    call.start()
    while not served.engine.num_open:
        await asyncio.sleep(0)
    call.hang_up()
    await call.finish()
    assert served.engine.num_open == 0
    assert served.engine.num_aborted == fields.get("n", 1)


async def test_a_disconnect_before_the_first_token_aborts_the_answer(served: Served) -> None:
    served.engine.script = lambda r: [asyncio.Event().wait]
    for stream in (True, False):
        call = Call(served.app, CHAT, chat(stream=stream))
        call.start()
        while not served.engine.num_open:
            await asyncio.sleep(0)
        call.hang_up()
        await call.finish()
    assert served.engine.num_aborted == 2


async def test_five_hundred_disconnects_at_random_points_free_every_slot(served: Served) -> None:
    chance = random.Random(7)

    async def visit(i: int) -> None:
        paths = (CHAT, "/v1/responses", "/v1/fim/completions")
        bodies = (
            chat(stream=i % 2 == 0, n=1 + i % 3, diffusing=i % 5 == 0),
            {"model": "nano", "input": "x", "stream": i % 2 == 0},
            {"model": "nano", "prompt": "x", "stream": i % 2 == 0},
        )
        call = Call(served.app, paths[i % 3], bodies[i % 3])
        call.start()
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        call.hang_up()
        await call.finish()

    served.engine.script = lambda r: spoken(r, [97] * 40, piece_len=1)
    for first in range(0, 500, 50):
        await asyncio.gather(*(visit(i) for i in range(first, first + 50)))
    assert served.engine.num_open == 0
    assert served.services.open_requests.num_open == 0
    assert served.engine.num_aborted > 50
    stats = await served.engine.stats()
    assert stats.free_pages == served.engine.info.num_pages


async def test_a_slow_reader_of_a_diffusing_stream_gets_the_newest_frame_only(served: Served) -> None:
    ids = tuple(small_tokenizer().encode("resolved"))
    done = asyncio.Event()

    def script(request: Request) -> list[Step]:
        def frame(i: int) -> Frame:
            return Frame(request.id, i, ids, (i > 998,) * 8, (0.5,) * 8)

        async def finish_playing() -> None:
            done.set()

        last = Delta(request.id, ids, finish=FinishReason.STOP, usage=Usage(1, 0, 8))
        return [*(frame(i) for i in range(1000)), finish_playing, last]

    served.engine.script = script
    call = Call(served.app, CHAT, chat(stream=True, diffusing=True))
    call.reading.clear()
    call.start()
    await done.wait()
    call.reading.set()
    await call.finish()
    steps = [int(part.split(",")[0]) for part in call.text.split('"step":')[1:]]
    assert steps[-1] == 999
    assert len(steps) < 10


async def test_an_idle_stream_sends_comments(served: Served) -> None:
    served.configure(keep_alive_comment_s=0.01)
    go_on = asyncio.Event()
    served.engine.script = lambda r: [Delta(r.id, (97,)), go_on.wait, *spoken(r, [98])]
    call = Call(served.app, CHAT, chat(stream=True))
    call.start()
    while ": keep-alive" not in call.text:
        await asyncio.sleep(0.001)
    go_on.set()
    await call.finish()
    assert call.text.endswith("data: [DONE]\n\n")
    assert call.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
