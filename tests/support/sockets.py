"""Raw sockets against a listener: for tests of what real clients never send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from quicksilver.server.config import ServerConfig
from quicksilver.server.run import Listener, make_listener

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(app: ASGIApp, config: ServerConfig) -> AsyncIterator[Listener]:
    listener = make_listener(app, "127.0.0.1", 0, config)
    task = asyncio.create_task(listener.serve())
    while not listener.started:
        await asyncio.sleep(0.001)
    try:
        yield listener
    finally:
        listener.should_exit = True
        await task


def port_of(listener: Listener) -> int:
    return int(listener.servers[0].sockets[0].getsockname()[1])


async def connect(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


async def read_to_end(reader: asyncio.StreamReader, limit_s: float = 10) -> bytes:
    """Everything up to the end of the connection, however it ends."""
    received = bytearray()
    try:
        while piece := await asyncio.wait_for(reader.read(65536), limit_s):
            received += piece
    except ConnectionError:
        pass
    return bytes(received)


async def exchange(port: int, raw: bytes) -> bytes:
    """All that the server sends in answer to `raw`, up to the end of the connection."""
    reader, writer = await connect(port)
    try:
        writer.write(raw)
        return await read_to_end(reader)
    finally:
        writer.close()


async def send_without_end(writer: asyncio.StreamWriter, piece: bytes, most: int) -> int:
    """Sends `piece` again and again until the peer closes or `most` bytes are sent; the number of bytes sent."""
    num_sent = 0
    try:
        while num_sent < most:
            writer.write(piece)
            num_sent += len(piece)
            await asyncio.wait_for(writer.drain(), 10)
            await asyncio.sleep(0)
    except (ConnectionError, TimeoutError):
        pass
    return num_sent
