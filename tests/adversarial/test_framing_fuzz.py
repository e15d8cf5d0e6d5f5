"""Random HTTP framing, cut at random places, against the protocol itself: 20,000 connections without a socket.

What must hold for every input: no exception, one reply per request, nothing after a reply that closes, no task left,
and no request that the application sees only because the bytes arrived in other pieces.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from quicksilver.server.config import ServerConfig
from quicksilver.server.http.protocol import BoundedProtocol, protocol_for

CASES_PER_SEED = 1000
CONFIG = ServerConfig(header_bytes=4096)
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")

Seen = list[tuple[str, str, bytes]]


class FakeTransport(asyncio.Transport):
    """Keeps what is written and refuses what a socket would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.protocol: BoundedProtocol
        self.has_ended = self._is_closing = False

    def write(self, data: Any) -> None:
        assert not self.has_ended, "written after the end of the output"
        if not self._is_closing:
            self.written += data

    def write_eof(self) -> None:
        self.has_ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def make_app(seen: Seen) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        if scope["path"] != "/early":
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body, more = body + message["body"], message["more_body"]
        assert not [name for name, _ in scope["headers"] if name == b"x-trailer"]
        seen.append((scope["method"], scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    return app


async def deliver(pieces: Sequence[bytes]) -> tuple[Seen, bytes]:
    """The requests that the application saw, and all that was written."""
    seen: Seen = []
    settings = uvicorn.Config(make_app(seen), lifespan="off", log_config=None, access_log=False)
    state, transport = ServerState(), FakeTransport()
    protocol = protocol_for(CONFIG)(settings, state, {}, _loop=asyncio.get_running_loop())
    transport.protocol = protocol
    protocol.connection_made(transport)
    for piece in pieces:
        if transport.is_closing():
            break
        protocol.data_received(piece)
        assert protocol.num_unparsed <= CONFIG.header_bytes + len(b"".join(pieces))
        for _ in range(4):
            await asyncio.sleep(0)
    for _ in range(200):
        if not state.tasks:
            break
        await asyncio.sleep(0)
        if not transport.is_closing():
            transport.close()
    transport.close()
    await asyncio.sleep(0)
    assert not state.tasks, "a request was left running"
    return seen, bytes(transport.written)


def make_input(rng: random.Random) -> bytes:
    raw = bytearray(b"".join(make_request(rng) for _ in range(rng.randint(1, 4))))
    for _ in range(rng.choice((0, 0, 1, 3))):
        place = rng.randrange(len(raw))
        raw[place : place + rng.randint(0, 3)] = rng.choice((b"", b"\r", b"\n", b"\x00", b":", rng.randbytes(2)))
    return bytes(raw[: rng.randint(1, len(raw) + 1)]) if rng.random() < 0.3 else bytes(raw)


def make_request(rng: random.Random) -> bytes:
    body = rng.randbytes(rng.randint(0, 40)).hex().encode()
    method, path = rng.choice(("GET", "POST", "PUT")), rng.choice(("/read", "/early", "/%2e", "*"))
    lines = [f"{method} {path} HTTP/1.{rng.choice('1110')}"]
    lines += rng.sample(ODD_LINES, rng.randint(0, 2))
    if rng.random() < 0.5:
        lines.append(f"content-length: {rng.choice((len(body), len(body), len(body) + 1, '0' * 30))}")
        tail = body
    elif rng.random() < 0.8:
        lines.append("transfer-encoding: chunked")
        tail = b"%x%s\r\n%s\r\n0\r\n" % (len(body), rng.choice((b"", b";a=b")), body) if body else b"0\r\n"
        tail += rng.choice((b"", b"x-trailer: 1\r\n", b"authorization: Bearer x\r\n")) + b"\r\n"
    else:
        tail = b""
    return "\r\n".join([*lines, "", ""]).encode() + tail


ODD_LINES = (
    "host: localhost",
    "connection: close",
    "connection: keep-alive, upgrade",
    "upgrade: h2c",
    "expect: 100-continue",
    "transfer-encoding: chunked",
    "transfer-encoding: identity",
    "content-length: 3",
    "x-long: " + "v" * 300,
    " folded: 1",
    "no colon",
)


def cut(rng: random.Random, raw: bytes) -> list[bytes]:
    places = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randint(1, 8)))
    return [piece for a, b in zip([0, *places], [*places, len(raw)], strict=True) if (piece := raw[a:b])]


def check_output(seen: Seen, written: bytes) -> None:
    replies = written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    statuses = [int(status) for status in STATUS_LINE.findall(replies)]
    # A request may be refused while its body arrives, even if the application did not wait for the body.
    num_whole = sum(path != "/early" for _, path, _ in seen)
    assert num_whole <= statuses.count(200) <= len(seen)
    assert 200 not in statuses[statuses.index(400) :] if 400 in statuses else True
    refusals = [status for status in statuses if status != 200]
    assert len(refusals) <= 1
    assert set(refusals) <= {400, 431}
    closing = [match.start() for match in re.finditer(rb"connection: close\r\n", replies)]
    assert len(closing) <= 1, "two replies close the connection"
    assert not closing or replies.rfind(b"HTTP/1.1 ") < closing[0], "a reply after the last one"


@pytest.mark.parametrize("seed", range(20))
async def test_random_framing_breaks_no_rule(seed: int) -> None:
    rng = random.Random(seed)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    for number in range(CASES_PER_SEED):
        raw = make_input(rng)
        case = f"seed {seed}, case {number}: {raw!r}"
        whole, whole_output = await deliver([raw])
        pieces, pieces_output = await deliver(cut(rng, raw))
        check_output(whole, whole_output)
        check_output(pieces, pieces_output)
        shorter, longer = sorted((whole, pieces), key=len)
        assert longer[: len(shorter)] == shorter, case
        assert not failures, (case, failures)
