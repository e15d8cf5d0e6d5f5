"""ServerConnection: an HTTP/1.1 connection to a server, one request at a time, bodies as they arrive.

What the server sends is available at once and is never held back. If the reader is slow, reading from the socket stops
at `MAX_BUFFERED_BYTES`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import cast

import httptools

from quicksilver.cluster.proxy.config import Address

MAX_BUFFERED_BYTES = 128 * 2**10
Header = tuple[bytes, bytes]


class ServerFailed(Exception):
    """The server cannot be reached, ended the connection early, took too long, or did not send HTTP."""


class ServerTimedOut(ServerFailed):
    """The server took too long. It may still be working on the request."""


@dataclass(frozen=True, slots=True)
class ReplyHead:
    status: int
    # Names in lower case.
    headers: tuple[Header, ...]

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


class ServerConnection(asyncio.Protocol):
    """`open`, then for each request: `begin`, `write`, `read_head`, `read` until it is empty. `abort` at any time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._error: ServerFailed | None = None
        self.last_activity = self._loop.time()
        self.idle_since = 0.0
        self._reset(has_body=True)

    @classmethod
    async def open(cls, address: Address, limit_s: float) -> ServerConnection:
        """Raises ServerFailed."""
        context = address.tls_context()
        opening = asyncio.get_running_loop().create_connection(cls, address.host, address.port, ssl=context)
        try:
            return (await asyncio.wait_for(opening, limit_s))[1]
        except (OSError, TimeoutError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise ServerFailed(f"cannot connect: {reason}") from None

    @property
    def is_reusable(self) -> bool:
        """Whether the last reply is complete and the server keeps the connection open."""
        return self._is_complete and self._keeps_alive and self._error is None and not self._pieces

    @property
    def is_waiting(self) -> bool:
        """Whether the reader waits for the server."""
        return self._waiter is not None

    @property
    def has_head(self) -> bool:
        return self._head is not None

    def begin(self, *, has_body: bool) -> None:
        """Before a request. `has_body` is False for HEAD, whose reply has a length and no body."""
        self._reset(has_body)

    def _reset(self, has_body: bool) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._has_body = has_body
        self._headers: list[Header] = []
        self._head: ReplyHead | None = None
        self._pieces: deque[bytes] = deque()
        self._num_buffered = 0
        self._is_complete = False
        self._keeps_alive = False
        # Whether the server may have received a part of the request.
        self.has_sent = False

    def forbid_reuse(self) -> None:
        """After a reply that came before the whole request was sent."""
        self._keeps_alive = self._has_body = False

    async def write(self, data: bytes) -> None:
        if self._transport is None or self._error is not None:
            raise self._error or ServerFailed("the connection is closed")
        self.has_sent = True
        self._transport.write(data)
        self.last_activity = self._loop.time()
        await self._can_write.wait()

    async def read_head(self) -> ReplyHead:
        while self._head is None:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """The bytes of the body that have arrived, at least one; empty at the end of the reply."""
        while not self._pieces:
            if self._is_complete:
                return b""
            await self._wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._num_buffered > MAX_BUFFERED_BYTES and self._transport is not None:
            self._transport.resume_reading()
        self._num_buffered = 0
        return data

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def abort(self, error: ServerFailed | None = None) -> None:
        """Ends the connection; the server sees that its reader is gone."""
        self._end(error or ServerFailed("the connection was closed"))

    def _fail(self, reason: str) -> None:
        self._end(ServerFailed(reason))

    def _end(self, error: ServerFailed) -> None:
        self._error = self._error or error
        self._can_write.set()
        self._wake()
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.last_activity = self._loop.time()
        if self._is_complete:
            self._fail("the server sent more than one reply")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("the reply is not valid HTTP")
            return
        if self._num_buffered > MAX_BUFFERED_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._head is not None and not self._is_complete and self._ends_with_connection(self._head):
            self._is_complete = True
        self._fail("the server ended the connection")

    @staticmethod
    def _ends_with_connection(head: ReplyHead) -> bool:
        return head.get(b"content-length") is None and head.get(b"transfer-encoding") is None

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    # Callbacks of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._is_complete:  # bytes after the end of the reply
            self._keeps_alive = False
            return
        status = self._parser.get_status_code()
        if status >= 200:
            self._head = ReplyHead(status, tuple(self._headers))
            self._is_complete = not self._has_body
        self._headers = []

    def on_body(self, body: bytes) -> None:
        if self._is_complete:
            return
        self._pieces.append(body)
        self._num_buffered += len(body)

    def on_message_complete(self) -> None:
        if self._head is not None and not self._is_complete:
            self._is_complete = True
            self._keeps_alive = self._has_body and self._parser.should_keep_alive()
