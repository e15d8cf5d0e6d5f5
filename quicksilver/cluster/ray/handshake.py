"""Mutual authentication at the start of a connection between an API process and a replica.

Both prove that they know the replica's secret, which API processes learn through Ray, by an HMAC of two random nonces.
The secret is not sent. Nothing else is read from a client before.
"""

from __future__ import annotations

import asyncio
import hmac
import os

SECRET_BYTES = NONCE_BYTES = PROOF_BYTES = 32
# Seconds for the handshake of one client.
HANDSHAKE_S = 5.0


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + nonces, "sha256")


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> bool:
    """The replica's side: whether the client knows the secret."""
    own = os.urandom(NONCE_BYTES)
    writer.write(own)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            reply = await reader.readexactly(NONCE_BYTES + PROOF_BYTES)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return False
    nonces = own + reply[:NONCE_BYTES]
    if not hmac.compare_digest(reply[NONCE_BYTES:], _proof(secret, b"client", nonces)):
        return False
    writer.write(_proof(secret, b"replica", nonces))
    return True


async def connect(host: str, port: int, secret: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The client's side. Raises OSError if the replica cannot be reached or does not know the secret."""
    async with asyncio.timeout(HANDSHAKE_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            nonces = await reader.readexactly(NONCE_BYTES) + (own := os.urandom(NONCE_BYTES))
            writer.write(own + _proof(secret, b"client", nonces))
            proof = await reader.readexactly(PROOF_BYTES)
            if not hmac.compare_digest(proof, _proof(secret, b"replica", nonces)):
                raise ConnectionRefusedError("the replica does not know its secret")
        except BaseException as error:
            writer.close()
            if isinstance(error, asyncio.IncompleteReadError):
                raise ConnectionRefusedError("the replica ended the handshake") from None
            raise
    return reader, writer
