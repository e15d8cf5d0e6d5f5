"""Streaming chat clients in several processes, for `load.py --url`.

A client only stamps the bytes that arrive; events are parsed after the level, so that the clients are not measured.
In an open loop the time to the first token counts from the scheduled arrival of a request, also if it is sent later
because `streams` requests are open: a slow server must not hide its own queue. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load_prompts import KINDS, SCHEMAS, SYSTEM, text_of


@dataclass(frozen=True)
class Level:
    """What one client process sends."""

    host: str
    port: int
    key: str
    bodies: list[bytes]
    streams: int
    rate: float  # requests per second of this process; 0 is a closed loop
    seed: int


@dataclass
class Answer:
    start: float  # the scheduled arrival in an open loop, else when the request was sent
    pieces: list[tuple[float, bytes]] = field(default_factory=list)


@dataclass
class Arrivals:
    """When the chunks of one answer arrived, and its tokens."""

    start: float
    times: list[float] = field(default_factory=list)
    num_tokens: int = 0


def body_of(options: Any, index: int) -> bytes:
    kind = "json" if options.schema else KINDS[index % len(KINDS)]
    body = {
        "model": options.model,
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": text_of(kind, index // len(KINDS), index)},
        ],
        "temperature": 0,
        "max_tokens": options.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.schema:
        schema = {"name": "answer", "strict": True, "schema": SCHEMAS[index % len(SCHEMAS)]}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return json.dumps(body).encode()


async def ask(level: Level, body: bytes, arrival: float | None = None) -> Answer:
    """One request on a connection of its own. A refused connection is an answer without bytes."""
    answer = Answer(time.monotonic() if arrival is None else arrival)
    try:
        reader, writer = await asyncio.open_connection(level.host, level.port)
    except OSError:
        return answer
    key = f"authorization: Bearer {level.key}\r\n" if level.key else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {level.host}:{level.port}\r\ncontent-type: application/json\r\n"
        f"{key}connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    try:
        while data := await reader.read(1 << 16):
            answer.pieces.append((time.monotonic(), data))
    finally:
        writer.close()
    return answer


def arrival_times(rate: float, count: int, seed: int) -> list[float] | list[None]:
    """Scheduled times of a Poisson process, from now on; None for each request of a closed loop."""
    if not rate:
        return [None] * count
    rng = random.Random(seed)
    return list(accumulate((rng.expovariate(rate) for _ in range(count - 1)), initial=time.monotonic()))[:count]


async def run_level(level: Level) -> list[Answer]:
    """All requests of one process, `streams` at a time, in a closed loop or at Poisson times."""
    gate = asyncio.Semaphore(level.streams)

    async def guarded(body: bytes, arrival: float | None) -> Answer:
        if arrival is not None:
            await asyncio.sleep(max(arrival - time.monotonic(), 0.0))
        async with gate:
            return await ask(level, body, arrival)

    times = arrival_times(level.rate, len(level.bodies), level.seed)
    return await asyncio.gather(*map(guarded, level.bodies, times))


def client(level: Level, results: Any) -> None:
    results.put([(one.start, one.pieces) for one in asyncio.run(run_level(level))])


def parse(pieces: list[tuple[float, bytes]]) -> tuple[list[float], int]:
    """Arrival times of chunks with text, and the number of tokens. Raises if the answer is not complete."""
    data = b"".join(piece for _, piece in pieces)
    if not data.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in data:
        raise ValueError(data[:300].decode(errors="replace"))
    times, tokens, at = [], 0, 0
    for when, piece in pieces:
        # A chunk counts at the arrival of the piece in which it starts.
        for line in data[at : at + len(piece)].split(b"data: ")[1:]:
            if b'"content":"' in line.replace(b'": "', b'":"') and b'"content":""' not in line.replace(b'": "', b'":"'):
                times.append(when)
        at += len(piece)
    for line in data.split(b"data: "):
        if b'"completion_tokens"' in line:
            tokens = json.loads(line[: line.rindex(b"}") + 1])["usage"]["completion_tokens"]
    return times, tokens


def measure(options: Any, streams: int, num_requests: int) -> dict[str, Any]:
    url, count = urlsplit(options.url), min(options.processes, streams)
    base = random.randrange(1 << 16) * 16
    bodies = [body_of(options, base + index) for index in range(num_requests)]
    context = multiprocessing.get_context("spawn")
    results, processes = context.Queue(), []
    for n in range(count):
        share = streams // count + (n < streams % count)
        level = Level(
            url.hostname or "127.0.0.1", url.port or 80, options.key, bodies[n::count], share, options.rate / count, n
        )
        processes.append(context.Process(target=client, args=(level, results)))
    for process in processes:
        process.start()
    found = [one for _ in processes for one in results.get(timeout=1800)]
    for process in processes:
        process.join()
    return summary(streams, found)


def summary(streams: int, found: list[tuple[float, list[tuple[float, bytes]]]]) -> dict[str, Any]:
    answers, failed = list[Arrivals](), list[str]()
    for start, pieces in found:
        try:
            answers.append(Arrivals(start, *parse(pieces)))
        except (ValueError, KeyError, IndexError) as error:
            failed.append(str(error)[:200])
    return summary_of(streams, answers) | {"failed": len(failed), **({"error": failed[0]} if failed else {})}


def summary_of(streams: int, answers: list[Arrivals]) -> dict[str, Any]:
    """Tokens per second from the first start to the last chunk, and percentiles of waits and gaps."""
    first = [1e3 * (one.times[0] - one.start) for one in answers if one.times]
    gaps = [1e3 * (b - a) for one in answers for a, b in pairwise(one.times)]
    num_tokens, num_chunks = sum(one.num_tokens for one in answers), sum(len(one.times) for one in answers)
    begin = min((one.start for one in answers), default=0.0)
    seconds = max((one.times[-1] for one in answers if one.times), default=begin) - begin
    return {
        "streams": streams, "requests": len(answers), "tokens": num_tokens,
        "tokens_per_s": round(num_tokens / seconds) if seconds else 0,
        "ttft_ms": [round(_percentile(first, share), 1) for share in (0.5, 0.99)],
        "gap_ms": [round(_percentile(gaps, share), 2) for share in (0.5, 0.99)],
        "tokens_per_chunk": round(num_tokens / max(num_chunks, 1), 2),
    }  # fmt: skip


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
