"""Deadlines on real sockets: slow heads, huge heads, and readers that stop reading."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from quicksilver.core import Delta, Request
from quicksilver.server.config import Timeouts
from tests.server.conftest import Served, chat
from tests.support.fake_engine import Step
from tests.support.sockets import connect, listening, port_of, read_to_end

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def port_for(served: Served) -> AsyncIterator[int]:
    async with listening(served.app, served.services.config) as listener:
        yield port_of(listener)


def hasty(served: Served, **seconds: float) -> None:
    served.configure(timeouts=replace(Timeouts(), **seconds))


@pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nhost: localhost\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(served: Served, sent: bytes) -> None:
    hasty(served, header_read_s=0.05)
    async with port_for(served) as port:
        reader, writer = await connect(port)
        writer.write(sent)
        assert await read_to_end(reader) == b""
        writer.close()


async def test_only_a_head_that_has_begun_has_a_deadline(served: Served) -> None:
    hasty(served, header_read_s=0.3)
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        for _ in range(2):
            writer.write(GET)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(b'{"status":"ok"}'))
        assert [p.is_awaiting_head for p in listener.server_state.connections] == [False]
        writer.write(b"GET /he")
        assert await read_to_end(reader) == b""
        writer.close()


async def test_a_head_without_end_is_refused_at_the_bound(served: Served) -> None:
    async with port_for(served) as port:
        reader, writer = await connect(port)
        writer.write(b"GET /health HTTP/1.1\r\nx-big: " + b"v" * 40_000)
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 431")
        writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /health HTTP/1.1\nhost: localhost\n\n",
        b"GET /health\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: a\x00b\r\n\r\n",
        b"POST /v1/tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    ],
)
async def test_malformed_requests_are_refused_and_cut(served: Served, raw: bytes) -> None:
    hasty(served, header_read_s=0.2, body_idle_s=0.2)
    async with port_for(served) as port:
        reader, writer = await connect(port)
        writer.write(raw)
        reply = await read_to_end(reader)
        assert not reply.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5"))
        writer.close()


async def test_a_reader_that_stops_reading_is_cut_off_and_its_slot_returns(served: Served) -> None:
    hasty(served, write_stall_s=0.1)

    def chatter(request: Request) -> list[Step]:
        return [*(Delta(request.id, (97,) * 1000) for _ in range(150)), asyncio.Event().wait]

    served.engine.script = chatter
    # Whole snapshots fill the socket's buffers with few tokens.
    body = b'{"model":"nano","stream":true,"diffusing":true,"messages":[{"role":"user","content":"x"}]}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with port_for(served) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(head + body)
        while not served.engine.num_aborted:
            await asyncio.sleep(0.01)
        assert served.engine.num_open == 0
        writer.close()
    assert served.services.open_requests.num_open == 0


async def test_others_are_answered_while_many_send_slowly(served: Served) -> None:
    hasty(served, header_read_s=5)
    async with port_for(served) as port:
        slow_clients = [await connect(port) for _ in range(100)]
        for _, writer in slow_clients:
            writer.write(b"GET /health HTTP/1.1\r\nx: ")
        reader, writer = await connect(port)
        writer.write(GET)
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        for _, dawdler in [*slow_clients, (reader, writer)]:
            dawdler.close()


async def test_a_stream_over_a_real_socket_is_byte_exact(served: Served) -> None:
    async with port_for(served) as port, httpx.AsyncClient() as client:
        response = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=chat(stream=True))
        assert response.text.endswith("data: [DONE]\n\n")
        assert response.headers["transfer-encoding"] == "chunked"


async def test_a_stop_closes_a_connection_that_has_a_second_request_waiting(served: Served) -> None:
    go = asyncio.Event()
    script = served.engine.script
    served.engine.script = lambda r: [*list(script(r))[:1], go.wait, *list(script(r))[1:]]
    body = b'{"model":"nano","stream":true,"messages":[{"role":"user","content":"x"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(head + body + GET)
        await reader.readuntil(b"data: ")
        for connection in list(listener.server_state.connections):
            connection.shutdown()
        go.set()
        reply = await read_to_end(reader)
        writer.close()
    assert b"[DONE]" in reply
    assert b"HTTP/1.1" not in reply


def send_at_once(port: int, connection: socket.socket | None = None) -> socket.socket:
    """Sends a request without a turn of the event loop, so that the server has not read it."""
    connection = connection or socket.create_connection(("127.0.0.1", port))
    connection.sendall(GET)
    return connection


async def reply_on(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection; raises ConnectionResetError if it is reset."""

    def read() -> bytes:
        with connection, connection.makefile("rb") as received:
            return received.read()

    connection.settimeout(10)
    return await asyncio.to_thread(read)


async def test_a_connection_that_was_not_accepted_before_the_stop_is_answered(served: Served) -> None:
    async with listening(served.app, served.services.config) as listener:
        new = [send_at_once(port_of(listener)) for _ in range(20)]
        await listener.shutdown()
        listener.force_exit = True  # no second shutdown of the application
        replies = await asyncio.gather(*map(reply_on, new))
    assert all(reply.startswith(b"HTTP/1.1 200") for reply in replies)
    assert all(b"connection: close" in reply for reply in replies)


async def test_a_request_that_arrives_on_an_idle_connection_before_the_stop_is_answered(served: Served) -> None:
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(GET)
        await reader.readuntil(b"}")
        idle = writer.get_extra_info("socket").dup()
        send_at_once(0, idle)
        for connection in list(listener.server_state.connections):
            connection.shutdown()
        reply = await read_to_end(reader)
        writer.close()
        idle.close()
    assert reply.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in reply


async def test_a_head_that_does_not_end_delays_the_stop_by_the_linger_time_only(served: Served) -> None:
    hasty(served, header_read_s=60, linger_s=0.05)
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(GET[:9])
        while not any(each.is_awaiting_head for each in listener.server_state.connections):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        for connection in list(listener.server_state.connections):
            connection.shutdown()
        assert await read_to_end(reader) == b""
        writer.close()
