"""List the files of the package that a chat request passes, from the body to the last byte of the reply.

`python tools/request_trace.py` sends one streamed chat to the API with an engine in the same process and a tiny random
model, after a first one that is not counted. A file counts if one of its functions is called. The socket between an API
process and its worker (`quicksilver/worker`), accounts and grammars are not part of the path.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx

from quicksilver.engine.config import EngineConfig
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.worker.async_engine import AsyncEngine
from tests.support.small_tokenizer import VOCAB_SIZE, small_tokenizer
from tests.support.tiny import tiny_engine, tiny_model
from tools.sections import ROOT

PACKAGE = str(ROOT / "quicksilver")
BODY = {
    "model": "nano",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 8,
    "stream": True,
}


class FileTrace:
    """Profile function that collects the files of called functions while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if self.is_on and event == "call" and code.co_name != "<module>" and code.co_filename.startswith(PACKAGE):
            self.files.add(str(Path(code.co_filename).relative_to(ROOT)))

    def install(self) -> None:
        """For this thread, and for threads that start later."""
        sys.setprofile(self)
        threading.setprofile(self)


async def send_chat(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/chat/completions", json=BODY)
    assert reply.status_code == 200, reply.text
    assert reply.text.endswith("data: [DONE]\n\n")


async def trace_chat(trace: FileTrace, home: Path) -> None:
    trace.install()
    tokenizer = small_tokenizer()
    model = tiny_model(vocab_size=VOCAB_SIZE)
    engine = AsyncEngine(tiny_engine(EngineConfig(num_pages=64, max_rows=96), model))
    services = Services(engine, tokenizer, ChatTemplate.own(tokenizer), config=ServerConfig(home=home))
    transport = httpx.ASGITransport(app=build_app(services))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await send_chat(client)
            trace.is_on = True
            await send_chat(client)
            trace.is_on = False
    finally:
        await engine.close()


def traced_files() -> list[str]:
    trace = FileTrace()
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(trace_chat(trace, Path(home)))
    sys.setprofile(None)
    threading.setprofile(None)
    return sorted(trace.files)


def main() -> None:
    files = traced_files()
    print("\n".join(files))
    print(f"{len(files)} files")


if __name__ == "__main__":
    main()
