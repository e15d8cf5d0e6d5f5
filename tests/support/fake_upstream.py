"""`FakeUpstream`: an OpenAI-compatible chat endpoint on loopback whose replies are scripted.

It speaks HTTP over a real socket, so that timeouts, cut streams and refused connections are real. It keeps every body
that it received.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self


class Fault(StrEnum):
    NONE = "none"
    TIMEOUT = "timeout"
    RESET = "reset"
    CUT = "cut"
    GARBAGE = "garbage"
    EMPTY = "empty"
    LIMITED = "429"
    BROKEN = "500"
    BAD_GATEWAY = "502"
    REFUSED = "400"


@dataclass(frozen=True)
class Answer:
    text: str = "Paris, says the upstream."
    fault: Fault = Fault.NONE
    # Prompt, cached and completion tokens; None: the upstream reports none.
    usage: tuple[int, int, int] | None = (7, 2, 5)
    finish: str = "stop"
    retry_after: str = ""
    # Deltas instead of `text`.
    deltas: tuple[dict[str, Any], ...] = ()


Script = Callable[[dict[str, Any]], Answer]


@dataclass
class FakeUpstream:
    script: Script = lambda body: Answer()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._open: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:"))
        raw = await reader.readexactly(length)
        self.received += head.encode() + raw
        self.heads.append(head)
        self.bodies.append(json.loads(raw))
        answer = self.script(self.bodies[-1])
        if answer.fault is Fault.TIMEOUT:
            await asyncio.sleep(60)
        elif answer.fault is not Fault.RESET:
            writer.write(_reply(answer))
            await writer.drain()


def _reply(answer: Answer) -> bytes:
    if answer.fault.value.isdigit():
        wait = f"retry-after: {answer.retry_after}\r\n" if answer.retry_after else ""
        head = f"HTTP/1.1 {answer.fault.value} Scripted\r\n{wait}content-length: 2\r\nconnection: close\r\n\r\n{{}}"
        return head.encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    if answer.fault is Fault.GARBAGE:
        return head + b"data: {not json\n\n<html>"
    if answer.fault is Fault.EMPTY:
        return head
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks(answer)]
    if answer.fault is Fault.CUT:
        return head + "".join(events[:2]).encode()
    return head + b": comment\n\n" + "".join(events).encode() + b"data: [DONE]\n\n"


def chunks(answer: Answer) -> list[dict[str, Any]]:
    words = answer.text.split(" ")
    texts = [word if i == 0 else f" {word}" for i, word in enumerate(words)]
    deltas = list(answer.deltas) or [{"role": "assistant", "content": text} for text in texts]
    made = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    made.append(_chunk([{"index": 0, "delta": {}, "finish_reason": answer.finish}]))
    if answer.usage is not None:
        prompt, cached, completion = answer.usage
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        made.append({**_chunk([]), "usage": usage})
    return made


def _chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "big", "choices": choices}
