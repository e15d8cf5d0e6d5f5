"""Many streams at once through the HTTP layer, around an engine that only keeps time.

    python benchmarks/http_streams.py [--streams 1000] [--chunks 75] [--gap-ms 200] [--ramp-s 8]

One process serves, another reads. Every stream must come back byte-exact with its own marker in every chunk; printed
are the gaps between chunks against the nominal one, memory per stream, and what HTTP adds to a short request at
concurrency 1. --save writes `results/http_streams-DATE.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))

from quicksilver.core import EngineClient, Request
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.run import make_listener
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.worker.collector import collect_rarely
from tests.support.fake_engine import FakeEngine, Step, spoken
from tests.support.small_tokenizer import small_tokenizer

# Tokens per chunk. The small tokenizer has one token per byte.
MARKER_LEN = 4


class Metronome:
    """A scripted engine that emits the marker from the prompt once per interval, without drift."""

    def __init__(self, num_chunks: int, gap_s: float) -> None:
        self._num_chunks = num_chunks
        self._gap_s = gap_s

    def __call__(self, request: Request) -> Iterable[Step]:
        prompt = small_tokenizer().decode(request.prompt_ids)
        at = prompt.rindex("#")
        marker = prompt[at : at + MARKER_LEN]
        text = marker * self._num_chunks
        started = time.monotonic()
        for i, step in enumerate(spoken(request, small_tokenizer().encode(text), MARKER_LEN)):
            if self._gap_s:
                yield lambda due=started + i * self._gap_s: asyncio.sleep(max(0.0, due - time.monotonic()))
            yield step


def marker_of(index: int) -> str:
    return f"#{index:03x}"


async def serve(port: int, engine: EngineClient) -> None:
    tokenizer = small_tokenizer()
    config = ServerConfig(port=port)
    services = Services(engine, tokenizer, ChatTemplate.own(tokenizer), config=config)
    collect_rarely()
    await make_listener(build_app(services), "127.0.0.1", port, config).serve()


def post(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


async def read_stream(port: int, index: int, arrivals: list[list[float]]) -> str:
    """Read one stream over a raw socket. Returns its content."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [{"role": "user", "content": marker_of(index)}]
    writer.write(post({"model": "nano", "stream": True, "messages": messages}))
    content = []
    times = arrivals[index]
    async for line in reader:
        if line.startswith(b"data: {"):
            delta = json.loads(line[6:])["choices"][0]["delta"].get("content")
            if delta:
                times.append(time.monotonic())
                content.append(delta)
        elif line.startswith(b"data: [DONE]"):
            break
    writer.close()
    return "".join(content)


async def measure(port: int, options: argparse.Namespace) -> dict[str, Any]:
    arrivals: list[list[float]] = [[] for _ in range(options.streams)]
    started = time.monotonic()
    tasks = []
    for index in range(options.streams):
        tasks.append(asyncio.create_task(read_stream(port, index, arrivals)))
        await asyncio.sleep(max(0.0, started + index * options.ramp_s / options.streams - time.monotonic()))
    texts = await asyncio.gather(*tasks)
    wanted = [marker_of(i) * options.chunks for i in range(options.streams)]
    gaps = sorted((b - a) * 1000 for times in arrivals for a, b in pairwise(times))
    return {
        "byte_exact": sum(a == b for a, b in zip(texts, wanted, strict=True)),
        "chunks": sum(map(len, arrivals)),
        "seconds": round(time.monotonic() - started, 2),
        "gap_ms": {f"p{p}": round(gaps[min(len(gaps) - 1, int(len(gaps) * p / 100))], 1) for p in (50, 95, 99)},
    }


async def overhead(port: int, num: int = 500) -> dict[str, float]:
    """Latency of a short answer at concurrency 1, over HTTP and directly from the engine, alternating."""
    engine = FakeEngine(Metronome(1, 0))
    request = Request("x", tuple(small_tokenizer().encode(marker_of(1))))
    http, direct = [], []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(num):
        start = time.perf_counter()
        writer.write(post({"model": "nano", "messages": [{"role": "user", "content": marker_of(1)}]}))
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(length)
        middle = time.perf_counter()
        async for _event in engine.stream(request):
            pass
        http.append((middle - start) * 1000)
        direct.append((time.perf_counter() - middle) * 1000)
    writer.close()
    added = statistics.median(http) - statistics.median(direct)
    return {"http_p50_ms": round(statistics.median(http), 2), "added_p50_ms": round(added, 2)}


def start_server(port: int, num_chunks: int, gap_s: float) -> subprocess.Popen[bytes]:
    pace = ["--chunks", str(num_chunks), "--gap-ms", str(gap_s * 1000)]
    return subprocess.Popen([sys.executable, __file__, "--serve", str(port), *pace])


async def wait_for(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def run(options: argparse.Namespace) -> dict[str, Any]:
    short, paced = options.port, options.port + 1
    servers = [start_server(short, 1, 0), start_server(paced, options.chunks, options.gap_ms / 1000)]
    try:
        await wait_for(short)
        await wait_for(paced)
        added = await overhead(short)
        before = resident_bytes(servers[1].pid)
        peaks: list[int] = []
        watch = asyncio.create_task(note_memory(servers[1].pid, peaks))
        figures = await measure(paced, options)
        watch.cancel()
    finally:
        for server in servers:
            server.kill()
            server.wait()
    peak = max(peaks)
    memory = {"server_mb": round(peak / 1e6), "kb_per_stream": round((peak - before) / 1e3 / options.streams, 1)}
    return {"streams": options.streams, "nominal_gap_ms": options.gap_ms, **figures, **added, **memory}


async def note_memory(pid: int, peaks: list[int]) -> None:
    while True:
        peaks.append(resident_bytes(pid))
        await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--chunks", type=int, default=75)
    parser.add_argument("--ramp-s", type=float, default=8, help="seconds over which the streams are opened")
    parser.add_argument("--gap-ms", type=float, default=200)
    parser.add_argument("--port", type=int, default=18480)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve, FakeEngine(Metronome(options.chunks, options.gap_ms / 1000))))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    figures = {"date": str(date.today()), "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    figures["load_before"] = round(os.getloadavg()[0], 1)
    # Pauses of this side are not the server's.
    gc.disable()
    figures |= uvloop.run(run(options))
    print(json.dumps(figures, indent=2))
    if options.save:
        path = Path(__file__).parent / "results" / f"http_streams-{figures['date']}.json"
        path.parent.mkdir(exist_ok=True)
        past = json.loads(path.read_text())["runs"] if path.exists() else []
        path.write_text(json.dumps({"runs": [*past, figures]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
