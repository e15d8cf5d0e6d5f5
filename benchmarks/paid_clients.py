"""Clients of a paid server, one socket a request: plain and streamed, some leave, some send the same again.

HTTP/1.0 by hand, so that a body ends with its connection and a client can leave at any byte. What each one saw is all
that the audit knows of it.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import random
from collections.abc import Sequence
from dataclasses import dataclass

CANARY = "CANARY-the-launch-code-is-0000"
NUM_CLIENTS = 50
MAX_OUTPUT = 44
NOT_TAKEN = ("not connected", "503 draining")
PATH = b"/v1/chat/completions"


@dataclass
class Seen:
    """What a client received of one request."""

    outcome: str = "no reply"
    reply_id: str = ""
    idempotency_key: str = ""
    # Whether the answer arrived completely.
    is_whole: bool = False
    is_replay: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    most_output: int = MAX_OUTPUT


class Progress:
    """Number of finished requests, in memory shared with the fault injector."""

    def __init__(self, wanted: int, shared: mmap.mmap) -> None:
        self._wanted = wanted
        self._shared = shared
        self._done = 0

    @property
    def is_enough(self) -> bool:
        return self._done >= self._wanted

    def advance(self) -> None:
        self._done += 1
        self._shared[:8] = self._done.to_bytes(8, "little")

    @staticmethod
    def read(shared: mmap.mmap) -> int:
        return int.from_bytes(shared[:8], "little")


async def send_all(ports: Sequence[int], secrets: Sequence[str], progress: Progress, seed: int) -> list[Seen]:
    """Send all requests. Returns what was received for every request that a server accepted."""
    chooser = random.Random(seed)
    seen: list[Seen] = []

    async def client() -> None:
        while not progress.is_enough:
            one = Seen()
            await _request(one, chooser.choice(ports), chooser.choice(secrets), chooser)
            if one.outcome in NOT_TAKEN:
                await asyncio.sleep(0.05)
            else:
                seen.append(one)
                progress.advance()

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    return seen


async def _request(one: Seen, port: int, secret: str, chooser: random.Random) -> None:
    is_stream = chooser.random() < 0.5
    if chooser.random() < 0.2:
        one.idempotency_key = f"{secret[-6:]}-{'s' if is_stream else 'p'}-{chooser.randrange(20)}"
    words = chooser.choice(("slowly", "at once", "at once", "and die")) if not one.idempotency_key else "at once"
    patience_s = chooser.uniform(0, 0.5) if chooser.random() < 0.1 else 30.0
    try:
        async with asyncio.timeout(patience_s):
            await _converse(one, port, _head_and_body(secret, words, is_stream, one.idempotency_key), is_stream)
    except TimeoutError:
        one.outcome = "left"
    except ConnectionRefusedError:
        one.outcome = "not connected"
    except OSError:
        one.outcome = "connection lost"


def _head_and_body(secret: str, words: str, is_stream: bool, idempotency_key: str) -> bytes:
    message = {"role": "user", "content": f"{CANARY}: answer {words}"}
    body = {"model": "nano", "messages": [message], "max_tokens": MAX_OUTPUT, "stream": is_stream}
    raw = json.dumps({**body, **({"stream_options": {"include_usage": True}} if is_stream else {})}).encode()
    lines = [b"POST " + PATH + b" HTTP/1.0", b"host: localhost", b"content-length: " + str(len(raw)).encode()]
    lines.append(b"authorization: Bearer " + secret.encode())
    if idempotency_key:
        lines.append(b"idempotency-key: " + idempotency_key.encode())
    return b"\r\n".join([*lines, b"", raw])


async def _converse(one: Seen, port: int, request: bytes, is_stream: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        one.is_replay = "idempotent-replayed" in head
        one.outcome = head.split(" ", 2)[1]
        if one.outcome != "200":
            one.outcome += " " + json.loads(await reader.read())["error"]["code"]
        elif is_stream:
            await _read_stream(one, reader)
        else:
            _note_usage(one, json.loads(await reader.read()))
    except (asyncio.IncompleteReadError, json.JSONDecodeError):
        one.outcome = "cut off"
    finally:
        writer.close()


async def _read_stream(one: Seen, reader: asyncio.StreamReader) -> None:
    one.outcome = "stream cut off"
    usage = None
    while line := await reader.readline():
        if line == b"data: [DONE]\n" and usage is not None:
            one.outcome = "200"
            _note_usage(one, usage)
        elif line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                one.outcome = "stream error " + chunk["error"]["code"]
                return
            one.reply_id = chunk["id"]
            usage = chunk if chunk.get("usage") else None


def _note_usage(one: Seen, reply: dict[str, object]) -> None:
    usage = reply["usage"]
    assert isinstance(usage, dict)
    one.is_whole = True
    one.reply_id = str(reply["id"])
    one.input_tokens, one.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
