"""Bodies that arrive slowly, and callers without a key that try to use up what callers with one need."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from quicksilver.server.config import Timeouts
from tests.server.conftest import Served, chat
from tests.support.sockets import Connection, connect, listening, port_of, read_to_end

HEAD = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"


async def drip(connection: Connection, pause_s: float) -> bytes:
    """Sends one byte at a time until the server answers; its answer."""
    reader, writer = connection
    reply = asyncio.create_task(read_to_end(reader))
    while not reply.done():
        writer.write(b" ")
        await asyncio.wait({reply}, timeout=pause_s)
    writer.close()
    return reply.result()


async def test_a_body_below_the_least_rate_is_a_408_although_it_never_pauses(served: Served) -> None:
    served.configure(timeouts=replace(Timeouts(), body_grace_s=0.2))
    async with listening(served.app, served.services.config) as listener:
        connection = await connect(port_of(listener))
        connection[1].write(HEAD % (b"/v1/chat/completions", 8_000_000))
        assert (await asyncio.wait_for(drip(connection, 0.01), 20)).startswith(b"HTTP/1.1 408")


async def test_a_body_beyond_the_whole_deadline_is_a_408_although_it_is_fast_enough(served: Served) -> None:
    served.configure(timeouts=replace(Timeouts(), body_bytes_per_s=1, body_grace_s=60, body_read_s=0.2))
    async with listening(served.app, served.services.config) as listener:
        connection = await connect(port_of(listener))
        connection[1].write(HEAD % (b"/v1/chat/completions", 8_000_000))
        assert (await asyncio.wait_for(drip(connection, 0.01), 20)).startswith(b"HTTP/1.1 408")


async def test_a_body_at_the_least_rate_is_read(served: Served) -> None:
    served.configure(timeouts=replace(Timeouts(), body_grace_s=0.5, body_bytes_per_s=20))
    body = b'{"request_id":"r","user_action":"accept"}'
    async with listening(served.app, served.services.config) as listener:
        reader, writer = await connect(port_of(listener))
        writer.write(HEAD % (b"/feedback", len(body)))
        for byte in body:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def test_a_public_route_reads_no_more_than_its_small_cap(served: Served) -> None:
    assert (await served.post("/feedback", b" " * 4097)).status_code == 413
    report = b'{"request_id":"r","user_action":"accept"}'
    assert (await served.post("/feedback", report.ljust(4096))).status_code == 200


async def test_slow_bodies_without_a_key_leave_room_for_others(served: Served) -> None:
    """More than `max_open` of them: without a cap of their own every other route would answer 503."""
    served.configure(max_open=40, max_open_public=8)
    async with listening(served.app, served.services.config) as listener:
        slow = [await connect(port_of(listener)) for _ in range(60)]
        for _, writer in slow:
            writer.write(HEAD % (b"/feedback", 4000))
        while served.services.open_requests.num_open_public < 8 or served.services.open_requests.num_open > 8:
            await asyncio.sleep(0.01)
        assert (await served.post("/v1/chat/completions", chat())).status_code == 200
        refused = await served.post("/feedback", {"request_id": "r", "user_action": "accept"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
        for _, writer in slow:
            writer.close()
        while served.services.open_requests.num_open:
            await asyncio.sleep(0.01)
    assert (await served.post("/feedback", {"request_id": "r", "user_action": "accept"})).status_code == 200
