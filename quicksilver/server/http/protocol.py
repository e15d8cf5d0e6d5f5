"""uvicorn's HTTP/1.1 protocol with bounds on what a peer can make the server hold, wait for, or answer.

One object per connection, on the event loop. It adds these rules to uvicorn's:

- A head must be complete within `header_read_s`, and a reply must be read within `write_stall_s`.
- At most `header_bytes` of input may pass without a body byte or a complete head. This bounds heads, trailers and
  chunk extensions. Trailers are dropped.
- While a complete request is answered, later input is kept unparsed, at most `header_bytes` and one read of it.
- At most `max_connections` are open (`connections.py`); one more is answered with a 503 and closed.
- When the server stops, requests that have arrived are answered before their connections close.
- A connection that is closed before its request was read sends its reply first: input is discarded until the peer
  closes, within `linger_s` and `linger_bytes`. Nothing else is written to such a connection.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from quicksilver.errors import InvalidRequest, QuicksilverError, Unavailable
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.connections import MAX_REFUSING, TRUST, ConnectionTable, has_input, usable_connections
from quicksilver.server.http.errors import HeadersTooLarge, envelope

# Input is parsed in pieces of this size, so that at most this much is parsed past the end of a request.
PIECE_BYTES = 4096


class BoundedProtocol(HttpToolsProtocol):
    """`protocol_for` makes the class for one configuration."""

    settings = ServerConfig()
    table = ConnectionTable(settings.max_connections)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_deadline: asyncio.TimerHandle | None = None
        self._stall_deadline: asyncio.TimerHandle | None = None
        self._linger_deadline: asyncio.TimerHandle | None = None
        self._unparsed = bytearray()
        self._bytes_since_progress = 0
        self._trailer_bytes = 0
        self._discarded_bytes = 0
        self._is_in_head = False
        self._is_discarding = False
        self._is_refused = False
        self._is_shut_down = False
        self._answering: RequestResponseCycle | None = None
        self._input: InputGate

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._input = InputGate(transport)
        if self.table.add(self):
            self._await_head()
        else:
            self._refuse_connection()

    def _refuse_connection(self) -> None:
        self._is_refused = True
        self.table.num_refusing += 1
        if self.table.num_refusing > MAX_REFUSING:
            self.transport.abort()
        else:
            self._reply_and_close(Unavailable("Too many connections are open here.", code="server_overloaded"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        self.table.num_refusing -= self._is_refused
        for deadline in (self._head_deadline, self._stall_deadline, self._linger_deadline):
            if deadline is not None:
                deadline.cancel()
        self.pipeline.clear()
        # uvicorn notifies only the newest request of the connection, which may be a pipelined one.
        if self._answering is not None:
            _disconnect(self._answering)
        super().connection_lost(exc)

    @property
    def is_awaiting_head(self) -> bool:
        """Whether a request head must be complete by a deadline. An idle connection has until keep-alive ends."""
        return self._head_deadline is not None

    @property
    def num_unparsed(self) -> int:
        """Bytes kept until the current request is answered."""
        return len(self._unparsed)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being read or answered; a head that is incomplete does not count."""
        return self._is_between_requests() and not self.pipeline

    def evict(self) -> None:
        self.transport.abort()

    def _trust(self) -> None:
        self.table.trust(self)

    # Input

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            self._discard(len(data))
            return
        if self._head_deadline is None and self._is_between_requests():
            self._await_head()
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        while self._unparsed and not self._is_discarding and not self._is_answering_whole_request():
            piece = bytes(self._unparsed[:PIECE_BYTES])
            del self._unparsed[:PIECE_BYTES]
            self._bytes_since_progress += len(piece)
            super().data_received(piece)
            if max(self._bytes_since_progress, self._trailer_bytes) > self.settings.header_bytes:
                self._refuse(HeadersTooLarge(f"At most {self.settings.header_bytes} bytes of headers or trailers."))
        self._input.hold(len(self._unparsed) > self.settings.header_bytes)

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_answering_whole_request(self) -> bool:
        return bool(self.pipeline) or not (self._is_between_requests() or self.cycle.more_body)

    def _await_head(self, seconds: float | None = None) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
        self._head_deadline = self.loop.call_later(
            seconds or self.settings.timeouts.header_read_s, self.transport.abort
        )

    def _resume_parsing(self) -> None:
        """Takes up what arrived while the last request was answered."""
        if self.transport.is_closing() or self._is_discarding:
            return
        if self._head_deadline is None and (self._unparsed or self._is_in_head) and self._is_between_requests():
            self._unset_keepalive_if_required()
            self._await_head()
        self._parse()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._trailer_bytes = 0
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[TRUST] = self._trust

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:
            super().on_header(name, value)
        else:
            self._trailer_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._bytes_since_progress = 0
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None
        super().on_headers_complete()
        self.cycle.transport = cast(asyncio.Transport, ReplyTransport(self))

    def on_body(self, body: bytes) -> None:
        self._bytes_since_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_since_progress = 0
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered without the upgrade. The parser cannot read on, so the connection ends with it."""
        self._stop_after_reply()

    # Replies

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        cycle.keep_alive = cycle.keep_alive and not self._is_shut_down
        super()._start_asgi_task(cycle, cast(Any, _closing_if_unread(app, cycle)))

    def on_response_complete(self) -> None:
        if not self._is_discarding:
            super().on_response_complete()
            self.loop.call_soon(self._resume_parsing)

    def pause_writing(self) -> None:
        super().pause_writing()
        # `close` would wait until the buffer is written, which may be never.
        self._stall_deadline = self.loop.call_later(self.settings.timeouts.write_stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_deadline is not None:
            self._stall_deadline.cancel()
            self._stall_deadline = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest(msg, code="invalid_http"))

    def _refuse(self, error: QuicksilverError) -> None:
        """Answers input that is not acceptable HTTP, unless a reply is on its way already."""
        cycle = self._answering
        if self._is_discarding or self.transport.is_closing():
            return
        if cycle is None or cycle.response_complete:
            self._reply_and_close(error)
        elif not cycle.more_body:
            self._stop_after_reply()
        elif cycle.response_started:
            self.transport.abort()
        else:
            _disconnect(cycle)
            self._reply_and_close(error)

    def _reply_and_close(self, error: QuicksilverError) -> None:
        body = orjson.dumps(envelope(error))
        head = b"content-type: application/json\r\nx-content-type-options: nosniff\r\n"
        head += b"content-length: %d\r\nconnection: close\r\n" % len(body)
        head += b"retry-after: %d\r\n" % error.retry_after_s if isinstance(error, Unavailable) else b""
        self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + body)
        self._is_discarding = True
        self.close_after_reply()

    def _stop_after_reply(self) -> None:
        """The current reply is completed; everything else that arrived or arrives is dropped."""
        self.pipeline.clear()
        self._is_discarding = True
        if self._answering is not None:
            self._answering.keep_alive = False

    # Closing

    def shutdown(self) -> None:
        """Closes an idle connection, or lets the next reply close it. A request that has arrived and was not read is
        answered: closing would reset the connection."""
        self._is_shut_down = True
        has_arrived = self._is_in_head or self._unparsed or has_input(self.transport.get_extra_info("socket").fileno())
        if self.is_idle and has_arrived and not self.transport.is_closing():
            self._await_head(self.settings.timeouts.linger_s)
            return
        super().shutdown()
        # uvicorn marks only the newest request of the connection, which may be a pipelined one.
        if self._answering is not None:
            self._answering.keep_alive = False

    def close_after_reply(self) -> None:
        """Closes at once where the input was read to its end, else as soon as the peer has seen the reply."""
        if self._linger_deadline is not None or self.transport.is_closing():
            return
        has_unread = self._is_discarding or self._is_in_head or self._unparsed or (self.cycle and self.cycle.more_body)
        self._is_discarding = True
        self.pipeline.clear()
        self._unparsed.clear()
        if not has_unread:
            self.transport.close()
            return
        if self._head_deadline is not None:
            self._head_deadline.cancel()
        self._linger_deadline = self.loop.call_later(self.settings.timeouts.linger_s, self.transport.abort)
        self._input.hold(False)
        self._input.resume_reading()
        self.transport.write_eof()

    def is_closing(self) -> bool:
        """Whether the last byte of the connection has been written."""
        return self._linger_deadline is not None or self.transport.is_closing()

    def _discard(self, num_bytes: int) -> None:
        self._discarded_bytes += num_bytes
        if self._discarded_bytes > self.settings.linger_bytes:
            self.transport.abort()


class InputGate(FlowControl):
    """uvicorn's flow control, which a request that waits for its body must not open while input is held back."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False

    def hold(self, is_held: bool) -> None:
        if is_held and not self._is_held:
            self.pause_reading()
        was_held, self._is_held = self._is_held, is_held
        if was_held:
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._is_held:
            super().resume_reading()


class ReplyTransport:
    """What a reply is written to: drops writes after the last reply of a connection, and closes by lingering."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        if not self._protocol.is_closing():
            self._protocol.transport.write(data)

    def close(self) -> None:
        self._protocol.close_after_reply()

    def is_closing(self) -> bool:
        return self._protocol.is_closing()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """The application sees a disconnected peer, and what it sends is dropped."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


def _closing_if_unread(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """A reply that starts before the request was read to its end closes the connection."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_and_close)

    return run


def protocol_for(config: ServerConfig) -> type[BoundedProtocol]:
    """The class for one listener. uvicorn creates the protocol itself and passes it none of our objects, so settings
    and table are on the class."""
    table = ConnectionTable(usable_connections(config.max_connections))
    return type("ConfiguredProtocol", (BoundedProtocol,), {"settings": config, "table": table})
