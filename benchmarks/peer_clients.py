"""Streaming chat clients for `peer_vllm.py`: the same requests for every server, and their answers with times.

Clients are processes that only stamp the bytes that arrive; events are parsed after a level. A ticket number in front
of each prompt leaves the system turn alone to the prefix cache; it depends on the level and not on the server.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from benchmarks.load_clients import Answer, Level, ask
from benchmarks.load_prompts import KINDS, SCHEMAS, SYSTEM, text_of

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "rain", "falls", "on", "hills")
ANSWER_TOKENS, LONG_ANSWER_TOKENS = 256, 8
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Target:
    """Where requests go."""

    port: int
    model: str
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class Load:
    """One level: how many requests, of what kind, how many at a time. `first` numbers its prompts and tickets."""

    kind: str  # mixed, schema or long
    streams: int
    requests: int
    first: int
    prompt_tokens: int = 0  # of a long prompt, roughly


@dataclass(slots=True)
class Reply:
    """A parsed answer. Times are seconds of the monotonic clock."""

    number: int
    start: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str = ""
    error: str = ""

    @property
    def tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))


def kind_of(load: Load, number: int) -> str:
    return KINDS[(load.first + number) % len(KINDS)] if load.kind == "mixed" else "json"


def body_of(load: Load, model: str, number: int) -> bytes:
    """The request `number` of a level."""
    ticket = load.first + number
    if load.kind == "long":
        rng = random.Random(ticket)
        text = f"[ticket {ticket:06d}] " + " ".join(rng.choice(WORDS) for _ in range(load.prompt_tokens - 40))
    else:
        index = ticket // len(KINDS) if load.kind == "mixed" else ticket
        text = text_of(kind_of(load, number), index, ticket)
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": LONG_ANSWER_TOKENS if load.kind == "long" else ANSWER_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if load.kind == "schema":
        schema = {"name": "answer", "strict": True, "schema": SCHEMAS[ticket % len(SCHEMAS)]}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return json.dumps(body).encode()


_next_number: Any = None


def _share_counter(counter: Any) -> None:
    global _next_number
    _next_number = counter


def _client(target: Target, load: Load, streams: int, start_at: float) -> tuple[list[tuple[int, Answer]], float]:
    """What one client process received, and the share of a core that it used. Requests are taken from a counter that
    all processes have in common."""
    bodies = [body_of(load, target.model, number) for number in range(load.requests)]
    level = Level(target.host, target.port, "", [], streams, 0.0, 0)
    found: list[tuple[int, Answer]] = []

    async def worker() -> None:
        while True:
            with _next_number.get_lock():
                number = _next_number.value
                _next_number.value += 1
            if number >= load.requests:
                return
            started = time.monotonic()
            try:
                found.append((number, await asyncio.wait_for(ask(level, bodies[number]), TIMEOUT_S)))
            except (OSError, TimeoutError):
                found.append((number, Answer(started)))

    async def main() -> None:
        await asyncio.sleep(max(start_at - time.monotonic(), 0.0))
        await asyncio.gather(*(worker() for _ in range(streams)))

    gc.disable()
    used, began = time.process_time(), time.monotonic()
    _run(main())
    gc.enable()
    return found, (time.process_time() - used) / (time.monotonic() - began)


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


class Clients:
    """Client processes that stay alive between levels."""

    def __init__(self, target: Target, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.target, self.processes = target, processes
        self._counter = context.Value("i", 0)
        self._pool = context.Pool(processes, _share_counter, (self._counter,))

    def run(self, load: Load) -> tuple[dict[str, Any], list[Reply]]:
        self._counter.value = 0
        count = min(self.processes, load.streams)
        shares = [load.streams // count + (n < load.streams % count) for n in range(count)]
        start_at = time.monotonic() + 0.4  # every process has taken its share by then
        found = self._pool.starmap(_client, [(self.target, load, share, start_at) for share in shares], chunksize=1)
        replies = sorted((parse(*one) for answers, _ in found for one in answers), key=lambda reply: reply.number)
        return summary(load, replies) | {"client_core_share": round(max(share for _, share in found), 2)}, replies

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


def parse(number: int, answer: Answer) -> Reply:
    """Times at which the last byte of each event with text was received, the text and the usage."""
    reply = Reply(number, answer.start)
    raw = b"".join(piece for _, piece in answer.pieces)
    head, _, rest = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        reply.error = raw[:300].decode(errors="replace") or "no answer"
        return reply
    is_chunked = b"transfer-encoding: chunked" in head.lower()
    body, ends = _unchunked(rest) if is_chunked else (rest, [(len(rest), len(rest))])
    pieces_end, offset = list(accumulate(len(piece) for _, piece in answer.pieces)), len(head) + 4
    at, is_done = 0, False
    for event in body.split(b"\n\n"):
        at = min(at + len(event) + 2, len(body))
        if not event.startswith(b"data:"):
            continue
        if event[5:].strip() == b"[DONE]":
            is_done = True
            continue
        _, raw_end = ends[min(bisect_left(ends, (at, 0)), len(ends) - 1)]
        when = answer.pieces[min(bisect_left(pieces_end, offset + raw_end), len(pieces_end) - 1)][0]
        _take(reply, json.loads(event[5:]), when)
    if not is_done or not reply.usage:
        reply.error = reply.error or f"the stream ended early: {raw[-200:]!r}"
    return reply


def _unchunked(rest: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """The body, and for each chunk its end in the body and in the bytes received."""
    body, ends, at = bytearray(), list[tuple[int, int]](), 0
    while (line := rest.find(b"\r\n", at)) >= 0:
        size = int(rest[at:line].split(b";")[0] or b"0", 16)
        if size == 0:
            break
        body += rest[line + 2 : line + 2 + size]
        ends.append((len(body), line + 2 + size))
        at = line + 4 + size
    return bytes(body), ends or [(0, 0)]


def _take(reply: Reply, chunk: dict[str, Any], when: float) -> None:
    if chunk.get("error"):
        reply.error = json.dumps(chunk["error"])[:300]
    reply.usage = chunk.get("usage") or reply.usage
    for choice in chunk.get("choices") or []:
        text = (choice.get("delta") or {}).get("content")
        if text:
            reply.text += text
            reply.times.append(when)
        reply.finish = choice.get("finish_reason") or reply.finish


def summary(load: Load, replies: list[Reply]) -> dict[str, Any]:
    """Rates and percentiles of one level. Tokens are those that the server reports."""
    good = [reply for reply in replies if not reply.error and reply.times]
    row: dict[str, Any] = {"kind": load.kind, "streams": load.streams, "requests": len(replies),
                           "failed": len(replies) - len(good)}  # fmt: skip
    if len(good) < len(replies):
        row["error"] = next((reply.error for reply in replies if reply.error), "an answer without text")
    if not good:
        return row
    seconds = max(reply.times[-1] for reply in good) - min(reply.start for reply in good)
    tokens, chunks = sum(reply.tokens for reply in good), sum(len(reply.times) for reply in good)
    row |= {
        "seconds": round(seconds, 3),
        "tokens": tokens,
        "tokens_per_s": round(tokens / seconds, 1),
        "requests_per_s": round(len(good) / seconds, 2),
        "ttft_ms": _percentiles([reply.times[0] - reply.start for reply in good]),
        "gap_ms": _percentiles([b - a for reply in good for a, b in pairwise(reply.times)]),
        "answer_ms": _percentiles([reply.times[-1] - reply.start for reply in good]),
        "tokens_per_chunk": round(tokens / chunks, 2),
        "prompt_tokens": sum(int(reply.usage.get("prompt_tokens", 0)) for reply in good),
        "cached_tokens": sum(_cached(reply.usage) for reply in good),
        "cut_at_limit": sum(reply.finish == "length" for reply in good),
    }
    if load.kind == "mixed" and load.streams == 1:
        row["domains"] = {
            kind: round(statistics.median(speeds), 1) for kind in KINDS if (speeds := _speeds(load, good, kind))
        }
    if load.kind == "schema":
        row["valid"] = sum(_is_valid(reply.text, SCHEMAS[(load.first + reply.number) % len(SCHEMAS)]) for reply in good)
    return row


def _speeds(load: Load, replies: list[Reply], kind: str) -> list[float]:
    """Tokens per second of each answer of a kind, prompt included."""
    return [one.tokens / (one.times[-1] - one.start) for one in replies if kind_of(load, one.number) == kind]


def _cached(usage: dict[str, Any]) -> int:
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    import jsonschema_rs

    try:
        return bool(jsonschema_rs.is_valid(schema, json.loads(text)))
    except ValueError:
        return False


def _percentiles(seconds: list[float]) -> list[float]:
    """The median and the 99th percentile, in milliseconds."""
    ordered = sorted(seconds)
    return [round(1e3 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 2) for share in (0.5, 0.99)] if ordered else []  # noqa: E501  # fmt: skip
