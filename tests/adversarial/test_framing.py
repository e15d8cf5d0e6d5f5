"""HTTP framing as an attacker sends it: trailers, pipelined heads, unread bodies, numbers without end."""

from __future__ import annotations

import asyncio
import http.client
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse

from quicksilver.core import Request
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.protocol import BoundedProtocol
from quicksilver.server.run import Listener
from tests.server.conftest import Served
from tests.support.fake_engine import Step, spoken
from tests.support.small_tokenizer import small_tokenizer
from tests.support.sockets import connect, exchange, listening, port_of, read_to_end, send_without_end

CHUNKED = b"POST /feedback HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
STREAM_BODY = b'{"model":"nano","stream":true,"messages":[{"role":"user","content":"x"}]}'
STREAM = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(STREAM_BODY)
) + STREAM_BODY
MANY_BYTES = 64 * 2**20


def only_connection(listener: Listener) -> BoundedProtocol:
    (protocol,) = listener.server_state.connections
    assert isinstance(protocol, BoundedProtocol)
    return protocol


@pytest.mark.parametrize("piece", [b"x-trailer: " + b"v" * 1000 + b"\r\n", b"v" * 4096])
async def test_trailers_without_end_are_refused(served: Served, piece: bytes) -> None:
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(CHUNKED + b"x-first: ")
        reply = asyncio.create_task(read_to_end(reader))
        num_sent = await send_without_end(writer, piece, MANY_BYTES)
        writer.close()
        assert num_sent < MANY_BYTES
        assert (await reply).startswith(b"HTTP/1.1 431") or not reply.result()


async def test_trailers_beyond_the_bound_get_a_431(served: Served) -> None:
    async with listening(served.app, served.services.config) as listener:
        reply = await exchange(port_of(listener), CHUNKED + b"x: " + b"v" * 40_000)
        assert reply.startswith(b"HTTP/1.1 431")
        assert b"x-content-type-options: nosniff" in reply
        assert reply.count(b"HTTP/1.1") == 1
        assert b"headers_too_large" in reply


async def test_chunk_extensions_without_end_are_refused(served: Served) -> None:
    head = CHUNKED.removesuffix(b"1\r\n{\r\n0\r\n")
    async with listening(served.app, served.services.config) as listener:
        reply = await exchange(port_of(listener), head + b"1;a=" + b"v" * 80_000)
        assert reply.startswith(b"HTTP/1.1 431")


def echo_app() -> FastAPI:
    app = FastAPI()

    @app.post("/")
    async def echo(request: HttpRequest) -> JSONResponse:
        await request.body()
        return JSONResponse(sorted(request.headers.keys()))

    return app


@pytest.mark.parametrize("name", [b"Authorization", b"Host", b"X-Forwarded-For", b"Connection"])
async def test_trailers_are_not_headers(name: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nx-own: 1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    raw = head + b"2\r\n{}\r\n0\r\n" + name + b": qs-stolen\r\n\r\n"
    async with listening(echo_app(), ServerConfig()) as listener:
        reply = await exchange(port_of(listener), raw)
    assert reply.startswith(b"HTTP/1.1 200")
    assert reply.endswith(b'["connection","transfer-encoding","x-own"]')


async def test_a_host_in_the_trailer_is_no_host(served: Served) -> None:
    raw = b"GET /health HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nhost: localhost\r\n\r\n"
    async with listening(served.app, served.services.config) as listener:
        assert (await exchange(port_of(listener), raw)).startswith(b"HTTP/1.1 421")


class HeldStream:
    """A reply that stops after its first words until `go` is set."""

    def __init__(self, served: Served) -> None:
        self.go = asyncio.Event()
        served.engine.script = self._script

    def _script(self, request: Request) -> list[Step]:
        first, *rest = spoken(request, small_tokenizer().encode("hello world and more"))
        return [first, self.go.wait, *rest]


async def test_input_after_an_open_stream_is_bounded(served: Served) -> None:
    held = HeldStream(served)
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(STREAM)
        await reader.readuntil(b"data: ")
        protocol = only_connection(listener)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        sending = asyncio.create_task(send_without_end(writer, b"x-head: " + b"v" * 4000 + b"\r\n", MANY_BYTES))
        while not protocol.flow.read_paused:
            await asyncio.sleep(0.01)
        for _ in range(20):
            # A request that looks for a disconnect asks for more input; the bound must hold nevertheless.
            protocol.flow.resume_reading()
            await asyncio.sleep(0.005)
        assert protocol.num_unparsed <= served.services.config.header_bytes + 2**20
        assert protocol.flow.read_paused
        held.go.set()
        reply = await read_to_end(reader)
        writer.close()
        await sending
    # The stream is whole, and the head that came after it is refused on its own.
    stream, _, rest = reply.partition(b"data: [DONE]")
    assert stream
    assert rest.count(b"HTTP/1.1 431") == 1


async def test_requests_after_an_open_stream_are_answered_in_order(served: Served) -> None:
    held = HeldStream(served)
    second = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    for gap in (b"", None):
        async with listening(served.app, served.services.config) as listener:
            reader, writer = await connect(port_of(listener))
            writer.write(STREAM + (second if gap is not None else b""))
            await reader.readuntil(b"data: ")
            if gap is None:
                writer.write(second)
                await writer.drain()
            held.go.set()
            reply = await read_to_end(reader)
            writer.close()
        assert reply.index(b"[DONE]") < reply.index(b'{"status":"ok"}')
        held.go.clear()


async def test_a_lost_peer_is_seen_although_it_pipelined_a_second_request(served: Served) -> None:
    HeldStream(served)
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(STREAM + b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        async with asyncio.timeout(30):
            while not served.engine.num_aborted:
                await asyncio.sleep(0.01)
    assert served.engine.num_aborted == 1


async def test_garbage_after_an_open_stream_does_not_break_into_it(served: Served) -> None:
    held = HeldStream(served)
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(STREAM + b"\x00\x01 garbage\r\n\r\n")
        start = await reader.readuntil(b"data: ")
        held.go.set()
        reply = start + await read_to_end(reader)
        writer.close()
    assert reply.count(b"HTTP/1.1") == 1
    assert b"data: [DONE]" in reply


@pytest.mark.parametrize("digits", [20, 5000])
async def test_a_content_length_of_many_digits_is_a_400(served: Served, digits: int) -> None:
    raw = b"POST /feedback HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + b"2".rjust(digits, b"0") + b"\r\n\r\n{}"
    async with listening(served.app, served.services.config) as listener:
        assert (await exchange(port_of(listener), raw)).startswith(b"HTTP/1.1 400")


async def test_a_refusal_before_the_body_is_the_only_reply(served: Served) -> None:
    size = 200_000
    head = b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % size
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(head + b"x")
        start = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"v" * (size - 1))
        reply = start + await read_to_end(reader)
        writer.close()
    assert reply.startswith(b"HTTP/1.1 404")
    assert b"connection: close" in reply
    assert reply.count(b"HTTP/1.1") == 1


def post_all(port: int, size: int) -> int:
    """The status that a client sees which sends its whole body before it reads."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/v1/chat/completions", body=b"v" * size, headers={"host": "localhost"})
        return connection.getresponse().status
    finally:
        connection.close()


async def test_a_refusal_reaches_a_client_that_sends_its_whole_body_first(served: Served) -> None:
    async with listening(served.app, served.services.config) as listener:
        port = port_of(listener)
        statuses = [await asyncio.to_thread(post_all, port, 10_000_000) for _ in range(10)]
    assert statuses == [413] * 10


async def test_a_peer_that_never_stops_sending_is_cut_off(served: Served) -> None:
    served.configure(linger_bytes=2**20)
    head = b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n"
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(head)
        reply = asyncio.create_task(read_to_end(reader))
        assert await send_without_end(writer, b"v" * 65536, MANY_BYTES) < MANY_BYTES
        writer.close()
        await reply


async def test_a_peer_that_stays_after_its_refusal_is_cut_off(served: Served) -> None:
    timeouts: dict[str, Any] = {"linger_s": 0.1}
    served.configure(timeouts=type(served.services.config.timeouts)(**timeouts))
    head = b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n"
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(head)
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 404")
        while listener.server_state.connections:
            await asyncio.sleep(0.01)
        writer.close()
