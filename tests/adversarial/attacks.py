"""One coroutine per class of attack. Each sends one hostile exchange and returns what the server answered.

Everything that varies comes from the given random generator, so a run is repeated by its seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.adversarial.attack_bodies import BODIES, CHAT, JSON_PATHS, chat_body, prompt_body
from tests.adversarial.engine_work import EngineWork

# An open exchange counts as a hang once the engine has computed nothing for this long, unless the target has another
# limit. Bytes do not count as progress: a stream sends comments while it waits.
HANG_S = 60.0
# It also counts as a hang if it is open for this many times the limit, whatever the engine computes.
MAX_LIMITS = 10
# Between two checks of an open exchange.
CHECK_S = 1.0
# Routes for long texts, whose bodies are chats or prompts.
LONG_PATHS = (
    *("/v1/tokenize", CHAT, "/v1/completions", "/v1/edit/completions", "/v1/apply/completions"),
    *("/v1/messages", "/v1/messages/count_tokens", "/api/chat"),
)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
CODE = re.compile(rb'"code": ?"([a-z_]+)"')


@dataclass(frozen=True, slots=True)
class Target:
    """Where to attack, the headers of a paying tenant, and the seconds without work of the engine after which an open
    exchange counts as a hang."""

    port: int
    headers: dict[str, str]
    hang_s: float = HANG_S
    work: EngineWork = field(default_factory=EngineWork)

    @property
    def max_exchange_s(self) -> float:
        return MAX_LIMITS * self.hang_s

    def is_hung(self, started: float, now: float) -> bool:
        """Whether an exchange that is open since `started` waits for an engine that computes nothing."""
        return now - max(started, self.work.changed_at) > self.hang_s


@dataclass(frozen=True, slots=True)
class Exchange:
    """Statuses of the replies with their error codes, e.g. `503 draining`; none if the connection was closed."""

    replies: tuple[str, ...]
    hung: bool = False


Attack = Callable[[random.Random, Target], Awaitable[Exchange]]


def head(target: Target, path: str, *lines: str, method: str = "POST") -> bytes:
    fixed = [f"{name}: {value}" for name, value in target.headers.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *fixed, *lines, "", ""]).encode("latin-1")


def post(target: Target, path: str, body: bytes) -> bytes:
    return head(target, path, f"content-length: {len(body)}", "connection: close") + body


async def exchange(target: Target, *pieces: bytes, pause_s: float = 0.0) -> Exchange:
    """Sends the pieces and reads until the connection ends."""
    received, started = bytearray(), time.monotonic()
    try:
        async with asyncio.timeout(target.max_exchange_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            sending = asyncio.create_task(_send(writer, pieces, pause_s))
            try:
                while piece := await _read(reader, target, started, 65536):
                    received += piece
            finally:
                writer.transport.abort()
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except TimeoutError:
        return Exchange(_replies(received), hung=True)
    except OSError:
        pass
    return Exchange(_replies(received))


async def _read(reader: asyncio.StreamReader, target: Target, started: float, num_bytes: int) -> bytes:
    """The next bytes of an exchange, none at its end. Raises TimeoutError if it hangs."""
    reading = asyncio.ensure_future(reader.read(num_bytes))
    try:
        while not (await asyncio.wait({reading}, timeout=min(CHECK_S, target.hang_s)))[0]:
            if target.is_hung(started, time.monotonic()):
                raise TimeoutError
        return reading.result()
    finally:
        reading.cancel()


async def _send(writer: asyncio.StreamWriter, pieces: tuple[bytes, ...], pause_s: float) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_s)


def _replies(received: bytes | bytearray) -> tuple[str, ...]:
    found = []
    for match in STATUS.finditer(received):
        code = CODE.search(received, match.end())
        found.append(match[1].decode() + (f" {code[1].decode()}" if code and match[1] >= b"400" else ""))
    return tuple(found)


async def bad_framing(rng: random.Random, target: Target) -> Exchange:
    """Framing that is wrong, or right and broken at a random byte."""
    body = b'{"model":"nano","prompt":"x"}'
    raws = (
        head(target, "/v1/tokenize", "transfer-encoding: chunked", "content-length: 5") + b"0\r\n\r\n",
        head(target, "/v1/tokenize", "transfer-encoding: gzip, chunked") + b"0\r\n\r\n",
        head(target, "/v1/tokenize", "content-length: +5") + body,
        head(target, "/v1/tokenize", "content-length: " + "0" * rng.randint(20, 6000) + "5") + body,
        head(target, "/v1/tokenize", "content-length: 4", "content-length: 5") + body,
        head(target, "/v1/tokenize", "transfer-encoding: chunked") + b"fffffffffffffffff\r\n",
        head(target, "/v1/tokenize", "transfer-encoding: chunked") + b"1;" + b"e" * rng.randint(1, 80_000),
        head(target, "/v1/tokenize", "x: " + "v" * rng.randint(1, 60_000), "connection: close"),
        head(target, "/v1/tokenize", *(f"x-{i}: v" for i in range(rng.randint(1, 300))), "connection: close"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        rng.randbytes(rng.randint(1, 2000)) + b"\r\n\r\n",
    )
    raw = bytearray(rng.choice(raws))
    if rng.random() < 0.5:
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    # A request that stays incomplete is closed by its deadline; half of them hang up before.
    return await _cut_short(rng, target, bytes(raw))


async def _cut_short(rng: random.Random, target: Target, raw: bytes) -> Exchange:
    try:
        return await asyncio.wait_for(exchange(target, raw), rng.choice((0.2, 2.0)))
    except TimeoutError:
        return Exchange(())


async def endless_trailers(rng: random.Random, target: Target) -> Exchange:
    start = head(target, "/feedback", "transfer-encoding: chunked") + b"1\r\n{\r\n0\r\n"
    line = rng.choice((b"x-t: v\r\n", b"v" * 1000, b"authorization: Bearer x\r\n"))
    return await exchange(target, start, *([line * 64] * rng.randint(1, 200)))


async def pipelined(rng: random.Random, target: Target) -> Exchange:
    """Requests, heads without end or garbage after a request that is being answered."""
    first = post(target, CHAT, _dump(chat_body("hi", stream=True, max_tokens=4))).replace(b"connection: close\r\n", b"")
    rest = rng.choice(
        (b"\x00garbage\r\n\r\n", first, head(target, "/health", "x: " + "v" * 50_000), b"GET / HTTP/1.1\r\n")
    )
    return await _cut_short(rng, target, first + rest * rng.randint(1, 4))


async def slow_body(rng: random.Random, target: Target) -> Exchange:
    """A few seconds of single bytes."""
    path = rng.choice(JSON_PATHS)
    start = head(target, path, f"content-length: {rng.choice((100, 4000, 8_000_000))}")
    drip = [b" "] * rng.randint(1, 30)
    try:
        return await asyncio.wait_for(exchange(target, start, *drip, pause_s=0.1), 4)
    except TimeoutError:
        return Exchange(())


async def huge_prompt(rng: random.Random, target: Target) -> Exchange:
    text = rng.choice(("a", " ", "é", "👋", "a b ")) * rng.choice((100_000, 200_000, 1_000_000))
    path = rng.choice(LONG_PATHS)
    # The routes read the limit of the answer from different fields. Without one, it fills the context.
    limit: dict[str, Any] = {"options": {"num_predict": 1}} if path == "/api/chat" else {"max_tokens": 1}
    body = chat_body(text, **limit) if path not in ("/v1/tokenize", "/v1/completions") else prompt_body(text)
    return await exchange(target, post(target, path, _dump(body)))


async def odd_body(rng: random.Random, target: Target) -> Exchange:
    """A valid body with a random field replaced, or random bytes in it."""
    odd: list[Any] = [None, -1, 1e308, 2**63, "", "\x00", "a" * 5000, [], {}, [[]] * 50, True, {"a": {"b": []}}]
    path = rng.choice(JSON_PATHS)
    body = dict(BODIES[path])
    body[rng.choice(list(body))] = rng.choice(odd)
    raw = bytearray(_dump(body))
    if rng.random() < 0.3:
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return await exchange(target, post(target, path, bytes(raw)))


async def bad_schema(rng: random.Random, target: Target) -> Exchange:
    """Schemas that are deep, wide, contradictory, recursive or not schemas."""
    deep: Any = {"type": "string"}
    for _ in range(rng.randint(1, 80)):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    schemas: tuple[Any, ...] = (
        deep,
        {"enum": [str(i) for i in range(rng.randint(1, 3000))]},
        {"type": "string", "pattern": rng.choice(("(a+)+$", "(", "[a-z]{1,9999}", ".*" * 50))},
        {"$ref": "#"},
        {"$ref": "http://127.0.0.1/x"},
        {"allOf": [{"type": "string"}, {"type": "number"}]},
        {"type": "array", "items": {"type": "array", "maxItems": 0}, "minItems": 2, "uniqueItems": True},
        {"type": rng.choice(("nothing", 5, [], None))},
    )
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": rng.choice(schemas)}}
    body = chat_body("hi", max_tokens=8, response_format=form, stream=rng.random() < 0.5)
    return await exchange(target, post(target, CHAT, _dump(body)))


async def cancelled_stream(rng: random.Random, target: Target) -> Exchange:
    body = chat_body("Tell a long story.", stream=True, max_tokens=64, diffusing=rng.random() < 0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    received, started = b"", time.monotonic()
    try:
        writer.write(post(target, CHAT, _dump(body)))
        for _ in range(rng.randint(0, 6)):
            received += await _read(reader, target, started, 200)
    except TimeoutError:
        return Exchange(_replies(received), hung=True)
    except OSError:
        pass
    finally:
        writer.transport.abort()
    return Exchange(_replies(received))


async def choice_bomb(rng: random.Random, target: Target) -> Exchange:
    num, length = rng.choice(((2, 10), (64, 1000), (256, 1024), (256, 8)))
    labels = [(f"{i} " + "zq1 " * 300)[:length] for i in range(num)]
    return await exchange(target, post(target, CHAT, _dump(chat_body("pick", choice=labels))))


async def decision_bomb(rng: random.Random, target: Target) -> Exchange:
    """Many questions with many or long options."""
    num_questions, num_options, length = rng.choice(((1, 255, 1024), (16, 255, 64), (400, 2, 8), (400, 255, 8)))
    choices = [{"value": f"{i} " + "zq1 " * (length // 4)} for i in range(num_options)]
    question = {"type": "choice", "instructions": "Which?", "choices": choices}
    body = {"model": "nano", "input": "a", "questions": [question] * num_questions}
    return await exchange(target, post(target, "/v1/decisions", _dump(body)))


async def wrong_key(rng: random.Random, target: Target) -> Exchange:
    """No key, or a wrong one, with a body that is not read."""
    keys: tuple[dict[str, str], ...] = ({}, {"authorization": "Bearer qs-wrong"}, {"authorization": "Basic eDp4"})
    stranger = replace(target, headers=rng.choice(keys))
    return await exchange(stranger, post(stranger, rng.choice(JSON_PATHS), b"v" * rng.choice((10, 100_000, 9_000_000))))


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


# How often each class is drawn, relative to the others.
ATTACKS: dict[Attack, int] = {
    bad_framing: 8,
    endless_trailers: 2,
    pipelined: 3,
    slow_body: 3,
    huge_prompt: 2,
    odd_body: 8,
    bad_schema: 4,
    cancelled_stream: 3,
    choice_bomb: 2,
    decision_bomb: 2,
    wrong_key: 3,
}
