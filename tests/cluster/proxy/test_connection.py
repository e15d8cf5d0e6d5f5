from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quicksilver.cluster.proxy.config import Address
from quicksilver.cluster.proxy.connection import MAX_BUFFERED_BYTES, ServerConnection, ServerFailed
from tests.support.routed import RawServer, reply

GET = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n"


@asynccontextmanager
async def connected(data: bytes, *, closes: bool = False) -> AsyncIterator[ServerConnection]:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if closes:
            await writer.drain()
            writer.close()

    async with RawServer(answer).listening() as port:
        connection = await ServerConnection.open(Address("127.0.0.1", port), 5)
        connection.begin(has_body=True)
        await connection.write(GET)
        yield connection
        connection.abort()


async def body_of(connection: ServerConnection) -> bytes:
    await connection.read_head()
    pieces = []
    while piece := await connection.read():
        pieces.append(piece)
    return b"".join(pieces)


async def test_replies_with_a_length_leave_the_connection_reusable() -> None:
    async with connected(reply(b"fine", headers=b"X-A: 1\r\n")) as connection:
        head = await connection.read_head()
        assert (head.status, head.get(b"x-a")) == (200, b"1")
        assert await body_of(connection) == b"fine"
        assert connection.is_reusable
        connection.begin(has_body=True)
        await connection.write(GET)
        assert await body_of(connection) == b"fine"


async def test_chunked_replies_and_interim_heads() -> None:
    data = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with connected(data + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") as connection:
        assert await body_of(connection) == b"abcde"
        assert (await connection.read_head()).get(b"link") is None
        assert connection.is_reusable


async def test_replies_without_a_length_end_with_the_connection() -> None:
    async with connected(b"HTTP/1.1 200 OK\r\n\r\nto the end", closes=True) as connection:
        assert await body_of(connection) == b"to the end"
        assert not connection.is_reusable


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\ncontent-le", b"nonsense\r\n\r\n"])
async def test_a_missing_or_malformed_head_fails(data: bytes) -> None:
    async with connected(data, closes=True) as connection:
        with pytest.raises(ServerFailed):
            await connection.read_head()


async def test_a_short_body_fails_after_what_arrived() -> None:
    async with connected(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", closes=True) as connection:
        assert await connection.read() == b"half"
        with pytest.raises(ServerFailed):
            await connection.read()


async def test_bytes_after_the_reply_end_the_connection() -> None:
    async with connected(reply(b"fine") + reply(b"more")) as connection:
        assert await body_of(connection) == b"fine"
        assert not connection.is_reusable


async def test_a_slow_reader_stops_the_server() -> None:
    size = 64 * MAX_BUFFERED_BYTES
    async with connected(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)) as connection:
        await connection.read_head()
        await asyncio.sleep(0.2)
        first = await connection.read()
        assert len(first) <= 8 * MAX_BUFFERED_BYTES
        rest = await body_of(connection)
        assert len(first) + len(rest) == size


async def test_a_port_without_a_server_fails() -> None:
    with pytest.raises(ServerFailed, match="cannot connect"):
        await ServerConnection.open(Address("127.0.0.1", 1), 5)
