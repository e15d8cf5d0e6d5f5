"""uvicorn's HTTP protocol with the deadlines it lacks: a slow head, a huge head, and a reader that stops reading.

One object a connection, on the event loop. Everything beyond these three rules is uvicorn's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quicksilver.server.config import ServerConfig


class PatientProtocol(HttpToolsProtocol):
    """Patient within limits; `bounded` makes the class for one configuration."""

    settings = ServerConfig()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_deadline: asyncio.TimerHandle | None = None
        self._stall_deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadlines()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_deadline is None and self._is_between_requests():
            self._await_head()
        if self._head_deadline is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_deadline is not None and self._head_bytes > self.settings.header_bytes:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        # An abort drops the buffer: closing politely would wait for the reader that does not read.
        self._stall_deadline = self.loop.call_later(self.settings.timeouts.write_stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_deadline is not None:
            self._stall_deadline.cancel()
            self._stall_deadline = None
        super().resume_writing()

    @property
    def is_awaiting_head(self) -> bool:
        """Whether a request head must be complete by a deadline; an idle connection has until keep-alive ends."""
        return self._head_deadline is not None

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_deadline = self.loop.call_later(self.settings.timeouts.header_read_s, self.transport.abort)

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def _cancel_deadlines(self) -> None:
        for deadline in (self._head_deadline, self._stall_deadline):
            if deadline is not None:
                deadline.cancel()
        self._head_deadline = self._stall_deadline = None


def bounded(config: ServerConfig) -> type[PatientProtocol]:
    """uvicorn makes the protocol itself and passes it nothing of ours, so the settings ride on a class."""
    return type("BoundedProtocol", (PatientProtocol,), {"settings": config})
