"""Server-sent events: chunks of bytes, a comment while the stream is idle, and cleanup when the client disconnects.

The source is read only as fast as the socket takes the data, so nothing queues here for a slow client.
`while_connected` does the same for a reply that is not streamed: its work is cancelled when the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
Result = TypeVar("Result")


def data_event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def named_event(name: str, payload: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(payload) + b"\n\n"


class Closable(Protocol):
    async def aclose(self) -> None: ...


class EventStream(Response):
    """Sends what `events` yields. Whatever ends the reply, `source` is closed before the call returns."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        source: Closable,
        idle_s: float,
        headers: Mapping[str, str] | None = None,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._source = source
        self._idle_s = idle_s
        self._keep_alive = keep_alive
        self._num_sent = 0
        self._is_done = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The source is closed apart from the events: a generator that never began runs no cleanup of its own.
        async with aclosing(self._source):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._run(receive, send)

    async def _run(self, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        watch = asyncio.create_task(self._watch(receive, send))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watch, pump):
                task.cancel()
            results = await asyncio.gather(pump, watch, return_exceptions=True)
        _raise_failures(results)

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for chunk in events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._num_sent += 1
        self._is_done = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Returns when the reader is gone; meanwhile keeps idle proxies from closing the connection."""
        while True:
            before = self._num_sent
            try:
                message = await asyncio.wait_for(receive(), self._idle_s)
            except TimeoutError:
                if self._num_sent == before and not self._is_done:
                    await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})
                continue
            if message["type"] == "http.disconnect":
                return


class LineStream(EventStream):
    """One JSON object per line. There are no comments in this form, so an idle stream sends nothing."""

    media_type = "application/x-ndjson"

    async def _watch(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def _raise_failures(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client disconnects. The body must have been read before."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
