"""An engine worker whose answers are scripted: `python -m tests.support.scripted_worker --socket PATH`.

It answers as `tests.server.paid_server`: the whole text at once, or token by token if the prompt contains `slowly`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any, cast

from quicksilver.core import Request
from quicksilver.worker.async_engine import EventSink
from quicksilver.worker.server import serve
from tests.server.paid_server import script
from tests.support.fake_engine import FakeEngine, Script


class ScriptedEngine(FakeEngine):
    """A FakeEngine with what a worker needs of an AsyncEngine."""

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(script, **options)
        self._streams: dict[str, asyncio.Task[None]] = {}

    def record_steps(self, path: Path) -> None:
        """There are no steps."""

    async def submit(self, request: Request, sink: EventSink) -> None:
        self._streams[request.id] = asyncio.create_task(self._feed(request, sink))

    def abort(self, request_id: str) -> None:
        if request_id in self._streams:
            self._streams[request_id].cancel()

    async def _feed(self, request: Request, sink: EventSink) -> None:
        try:
            async for event in self.stream(request):
                sink.take([(request.id, event)])
        except Exception as error:
            sink.take([(request.id, error)])
        finally:
            self._streams.pop(request.id, None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    engine = ScriptedEngine(script)
    asyncio.run(serve(cast(Any, engine), parser.parse_args().socket))
