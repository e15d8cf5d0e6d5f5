"""Event streams: chunks, comments of an idle stream, and cleanup whatever ends the reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import orjson
import pytest
from starlette.requests import ClientDisconnect, Request

from quicksilver.server.http.body import KEEP_ALIVE, EventStream, LineStream, data_event, named_event, while_connected

LONG_S = 60.0


class Source:
    def __init__(self) -> None:
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


class Client:
    """Collects what is sent. `receive` waits until `leave` is called."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.sent = asyncio.Event()
        self._has_left = asyncio.Event()

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        self.sent.set()

    async def receive(self) -> dict[str, Any]:
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._has_left.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.sent.clear()
                await self.sent.wait()


async def chunks(*parts: bytes, then: Callable[[], Awaitable[object]] | None = None) -> AsyncGenerator[bytes, None]:
    for part in parts:
        yield part
    if then is not None:
        await then()


async def run(stream: EventStream, client: Client) -> None:
    async with asyncio.timeout(30):
        await stream({"type": "http"}, client.receive, client.send)


def test_events_are_one_line_of_json() -> None:
    payload = {"text": "a\nb"}
    assert data_event(payload) == b"data: " + orjson.dumps(payload) + b"\n\n"
    assert named_event("ping", payload).startswith(b"event: ping\ndata: {")
    assert data_event(payload).count(b"\n") == 2


async def test_a_stream_is_sent_whole_and_its_source_closed() -> None:
    client, source = Client(), Source()
    await run(EventStream(chunks(b"a", b"b"), source, LONG_S, {"x-a": "1"}), client)
    start, *parts, end = client.messages
    headers = dict(start["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"x-a"] == b"1"
    assert b"content-length" not in headers
    assert [part["body"] for part in parts] == [b"a", b"b"]
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}
    assert source.is_closed


async def test_an_idle_stream_sends_comments() -> None:
    client, source, go = Client(), Source(), asyncio.Event()
    running = asyncio.create_task(run(EventStream(chunks(b"a", then=go.wait), source, 0.01), client))
    await client.until(lambda: client.body.count(KEEP_ALIVE) >= 2)
    go.set()
    await running
    assert client.body.startswith(b"a")
    assert source.is_closed


async def test_a_client_that_leaves_ends_the_stream() -> None:
    client, source, go = Client(), Source(), asyncio.Event()
    running = asyncio.create_task(run(EventStream(chunks(b"a", then=go.wait), source, LONG_S), client))
    await client.until(lambda: client.body == b"a")
    client.leave()
    await running
    assert source.is_closed
    assert client.messages[-1]["more_body"] is True


async def test_a_failure_of_the_source_is_raised_after_cleanup() -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    client, source = Client(), Source()
    with pytest.raises(RuntimeError, match="broken"):
        await run(EventStream(chunks(b"a", then=fail), source, LONG_S), client)
    assert source.is_closed


async def test_lines_have_no_comments() -> None:
    client, source, go = Client(), Source(), asyncio.Event()
    stream = LineStream(chunks(b"{}\n", then=go.wait), source, 0.001)
    running = asyncio.create_task(run(stream, client))
    await client.until(lambda: client.body == b"{}\n")
    for _ in range(50):
        await asyncio.sleep(0)
    go.set()
    await running
    assert client.body == b"{}\n"
    assert dict(client.messages[0]["headers"])[b"content-type"].startswith(b"application/x-ndjson")


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
