"""CPU time of our HTTP protocol relative to uvicorn's own, per request and per streamed chunk.

    python -m benchmarks.http_protocol [--requests 2000] [--save]

Both run the same application on a transport without a socket, in turns, in one process. Figures are CPU time, so other
work on the machine hardly changes the ratios. --save writes `results/http_protocol-DATE.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from quicksilver.server.config import ServerConfig
from quicksilver.server.http.protocol import protocol_for

NUM_CHUNKS = 100
NUM_TURNS = 15
GET = b"GET /small HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer x\r\n\r\n"
POST = b"POST /small HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2048\r\n\r\n" + b"x" * 2048
STREAM = b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(NUM_CHUNKS):
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


class NullTransport(asyncio.Transport):
    """Counts replies and keeps nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.num_bytes = 0

    def write(self, data: Any) -> None:
        self.num_bytes += len(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def cpu_us(make: type[HttpToolsProtocol], raw: bytes, num: int) -> float:
    """Microseconds of CPU time per request on one connection."""
    settings = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    settings.load()
    state, transport = ServerState(), NullTransport()
    protocol = make(settings, state, {}, _loop=asyncio.get_running_loop())
    protocol.connection_made(transport)
    started = time.thread_time()
    for _ in range(num):
        protocol.data_received(raw)
        while state.tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    seconds = time.thread_time() - started
    assert transport.num_bytes > num * 20
    protocol.connection_lost(None)
    return seconds / num * 1e6


async def compare(raw: bytes, num: int) -> dict[str, float]:
    ours, theirs = protocol_for(ServerConfig()), HttpToolsProtocol
    pairs = [(await cpu_us(ours, raw, num), await cpu_us(theirs, raw, num)) for _ in range(NUM_TURNS)]
    return {
        "ours_us": round(statistics.median(a for a, _ in pairs), 1),
        "uvicorn_us": round(statistics.median(b for _, b in pairs), 1),
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
    }


async def run(num: int) -> dict[str, Any]:
    return {
        "get": await compare(GET, num),
        "post_2_kb": await compare(POST, num),
        f"stream_{NUM_CHUNKS}_chunks": await compare(STREAM, max(num // 20, 20)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="requests per turn")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    figures = {"date": str(date.today()), "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures |= runner.run(run(options.requests))
    print(json.dumps(figures, indent=2))
    if options.save:
        path = Path(__file__).parent / "results" / f"http_protocol-{figures['date']}.json"
        path.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
