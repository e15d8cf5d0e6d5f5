"""Both ends of a connection must know the secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quicksilver.cluster.ray import handshake

SECRET, OTHER = bytes(32), bytes([1]) * 32


@asynccontextmanager
async def accepting(secret: bytes, accepted: list[bool]) -> AsyncIterator[int]:
    """The port of a server that adds the result of each handshake."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(await handshake.accept(reader, writer, secret))
        if accepted[-1]:
            writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_both_know_the_secret() -> None:
    accepted: list[bool] = []
    async with accepting(SECRET, accepted) as port:
        reader, writer = await handshake.connect("127.0.0.1", port, SECRET)
        assert await reader.read() == b"hello"
        writer.close()
    assert accepted == [True]


async def test_a_client_without_the_secret_is_refused() -> None:
    accepted: list[bool] = []
    async with accepting(SECRET, accepted) as port:
        with pytest.raises(ConnectionRefusedError, match="ended the handshake"):
            await handshake.connect("127.0.0.1", port, OTHER)
    assert accepted == [False]


async def test_a_replica_without_the_secret_is_refused() -> None:
    """It accepts every client and sends a proof of its own."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(handshake.NONCE_BYTES))
        await reader.readexactly(handshake.NONCE_BYTES + handshake.PROOF_BYTES)
        writer.write(bytes(handshake.PROOF_BYTES))
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        with pytest.raises(ConnectionRefusedError, match="does not know"):
            await handshake.connect("127.0.0.1", server.sockets[0].getsockname()[1], SECRET)


async def test_a_proof_is_of_no_use_for_another_connection_or_role() -> None:
    """The client repeats the proof of an earlier connection, then its own proof as that of a replica."""
    accepted: list[bool] = []
    async with accepting(SECRET, accepted) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        first = await reader.readexactly(handshake.NONCE_BYTES)
        own = bytes(handshake.NONCE_BYTES)
        proof = handshake._proof(SECRET, b"client", first + own)
        writer.write(own + proof)
        assert await reader.readexactly(handshake.PROOF_BYTES) != proof
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(handshake.NONCE_BYTES) != first
        writer.write(own + proof)
        assert await reader.read() == b""
        writer.close()
    assert accepted == [True, False]


async def test_a_client_that_sends_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.05)
    accepted: list[bool] = []
    async with accepting(SECRET, accepted) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.readexactly(handshake.NONCE_BYTES)
        assert await reader.read() == b""
        writer.close()
    assert accepted == [False]
