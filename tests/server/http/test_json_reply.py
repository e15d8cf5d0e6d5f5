"""JSON replies, and work that ends with the client."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from quicksilver.server.http.json_reply import json_response, while_connected


def test_a_reply_has_its_status_headers_and_media_type() -> None:
    reply = json_response({"a": 1}, {"x-test": "1"}, 202)
    assert (reply.status_code, reply.body, reply.headers["x-test"]) == (202, b'{"a":1}', "1")
    assert reply.media_type == "application/json"


def request(gone: asyncio.Event) -> Request:
    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


async def test_the_result_is_returned_while_the_client_waits() -> None:
    async def work() -> int:
        return 7

    assert await while_connected(request(asyncio.Event()), work()) == 7


async def test_work_is_cancelled_when_the_client_disconnects() -> None:
    gone, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            gone.set()
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(ClientDisconnect):
        await while_connected(request(gone), work())
    assert cancelled.is_set()
