"""A hand-driven ASGI call: the test decides when the reader reads, stalls or hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import orjson
from starlette.types import ASGIApp, Message


class Call:
    """One POST. `sent` grows as the app sends; `reading` gates every body chunk."""

    def __init__(self, app: ASGIApp, path: str, body: object, headers: Mapping[str, str] | None = None) -> None:
        self._app = app
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": raw, "more_body": False})
        self._grew = asyncio.Condition()
        self.reading = asyncio.Event()
        self.reading.set()
        self.sent: list[Message] = []
        fields = {"host": "localhost", "content-length": str(len(raw)), **(headers or {})}
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in fields.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._app(self._scope, self._incoming.get, self._send)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            await self.reading.wait()
        async with self._grew:
            self.sent.append(message)
            self._grew.notify_all()

    async def wait_for_sent(self, num: int) -> None:
        async with self._grew:
            await asyncio.wait_for(self._grew.wait_for(lambda: len(self.sent) >= num), 10)

    def hang_up(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def finish(self) -> None:
        assert self._task is not None
        await asyncio.wait_for(self._task, 10)

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.sent if m["type"] == "http.response.body").decode()
