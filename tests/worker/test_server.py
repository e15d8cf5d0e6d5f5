"""The worker's socket: private, heartbeats from the first message on, and other bytes do no harm."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import sys
from pathlib import Path

from quicksilver.core import Request
from quicksilver.worker import protocol
from quicksilver.worker.client import RemoteEngine
from tests.support.tiny import decode_params

PROMPT = tuple(range(1, 30))
PARAMS = decode_params("verify", canvas_len=8, max_new_tokens=24)
COMMAND = [sys.executable, "-m", "tests.worker.worker_program"]


async def test_the_socket_is_private_and_other_bytes_on_it_do_no_harm() -> None:
    client = await RemoteEngine(COMMAND).start()
    try:
        path = Path(client._folder.name) / "engine-1.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for garbage in (b"\xff" * 64, b"\x05\x00\x00\x00hello", b"\x01\x00\x00\x00\xc1", b""):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(garbage)
            with contextlib.suppress(ConnectionError):
                writer.write_eof()
                await reader.read()
            writer.close()
        async with contextlib.aclosing(client.stream(Request("still here", PROMPT, PARAMS))) as events:
            assert [event async for event in events]
    finally:
        await client.close()


async def test_a_connection_begins_with_ready_and_a_heartbeat() -> None:
    client = await RemoteEngine(COMMAND).start()
    try:
        reader, writer = await asyncio.open_unix_connection(str(Path(client._folder.name) / "engine-1.sock"))
        first, second = [await protocol.read_body(reader) for _ in range(2)]
        assert first is not None
        assert second is not None
        assert isinstance(protocol.reply_decoder.decode(first), protocol.Ready)
        assert isinstance(protocol.reply_decoder.decode(second), protocol.Heartbeat)
        writer.close()
    finally:
        await client.close()
