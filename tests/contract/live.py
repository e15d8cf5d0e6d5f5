"""A live server on loopback around a scripted engine: for real clients, fuzzers and load.

`python -m tests.contract.live HOME` prints its address and serves until standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

from quicksilver.constrain.compile.pool import CompilePool
from quicksilver.core import Delta, EngineInfo, Request
from quicksilver.errors import EngineDied
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.encoding.pool import EncoderPool
from quicksilver.server.run import Listener, make_listener
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.contract.improvise import improvise
from tests.support.fake_engine import INFO, FakeEngine, Step, resolving, spoken
from tests.support.small_tokenizer import small_tokenizer

ANSWER = "Paris is the capital of France."
POEM = "Line of a long poem that goes on and on.\n" * 40


class LiveServer:
    """A server on its own thread, because the clients under test block."""

    def __init__(self, home: Path, info: EngineInfo = INFO, **settings: Any) -> None:
        """`settings` are fields of ServerConfig."""
        tokenizer = small_tokenizer()
        self.engine = FakeEngine(answer_by_prompt, info=info)
        self.grammars = CompilePool()
        config = ServerConfig(home=home, port=0, frames_per_s=1e9, **settings)
        template = ChatTemplate.own(tokenizer)
        self.encoders = EncoderPool(tokenizer, template)
        services = Services(
            self.engine, tokenizer, template, grammars=self.grammars, config=config, encoders=self.encoders
        )
        self.listener: Listener = make_listener(build_app(services), "127.0.0.1", 0, config)
        self.admin: Listener = make_listener(build_admin_app(services), "127.0.0.1", 0, config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        await asyncio.gather(self.grammars.start(), self.encoders.start())
        await asyncio.gather(self.listener.serve(), self.admin.serve())
        await asyncio.gather(self.grammars.stop(), self.encoders.stop())

    @property
    def url(self) -> str:
        return url_of(self.listener)

    def start(self) -> None:
        self._thread.start()
        while not (self.listener.started and self.admin.started):
            self._thread.join(0.01)

    def stop(self) -> None:
        self.listener.should_exit = self.admin.should_exit = True
        self._thread.join(10)


def url_of(listener: Listener) -> str:
    return f"http://127.0.0.1:{listener.servers[0].sockets[0].getsockname()[1]}"


def answer_by_prompt(request: Request) -> list[Step]:
    """The scripted answer depends on words in the prompt, so one server serves all tests."""
    tokenizer = small_tokenizer()
    prompt = tokenizer.decode(request.prompt_ids)
    if "fail half way" in prompt:
        return [Delta(request.id, tuple(tokenizer.encode("half"))), EngineDied("the worker died")]
    ids = tokenizer.encode_markup(choose_text(request, prompt))
    return resolving(request, ids) if request.wants_frames else spoken(request, ids)


def choose_text(request: Request, prompt: str) -> str:
    constraint = request.constraint
    answer = improvise(constraint, spelled_out(request)) if constraint and constraint.grammar else None
    if answer is None:
        answer = "It is sunny." if "tool result" in prompt else POEM if "long poem" in prompt else ANSWER
    answer = constraint.lead + answer if constraint else answer
    return answer if request.think is None else f"Let me think.</think>{answer}"


def spelled_out(request: Request) -> str:
    """The prompt with its special tokens written as text."""
    tokenizer = small_tokenizer()
    names = {token_id: name.encode() for name, token_id in tokenizer.special_tokens.items()}
    return b"".join(names.get(i) or tokenizer.token_bytes(i) for i in request.prompt_ids).decode("utf-8", "replace")


def main(home: Path) -> None:
    server = LiveServer(home)
    server.start()
    print(server.url, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
