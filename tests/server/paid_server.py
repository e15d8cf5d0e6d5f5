"""A whole server process with accounts around a scripted engine, and how tests start, kill and query it.

`python -m tests.server.paid_server HOME DATABASE PORT ADMIN_PORT` serves until it is told to stop and logs to standard
error, as in production.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.service import Accounts
from quicksilver.core import Request
from quicksilver.errors import EngineDied
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.logs import log_to_stderr
from quicksilver.server.run import serve_until_stopped
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.support.fake_engine import FakeEngine, Step, spoken
from tests.support.small_tokenizer import small_tokenizer

ANSWER = "The quick brown fox jumps over the lazy dog. " * 20


def script(request: Request) -> list[Step]:
    """The whole answer; token by token if the prompt contains `slowly`; half of it if it contains `and die`."""
    tokenizer = small_tokenizer()
    prompt = tokenizer.decode(request.prompt_ids)
    ids = tokenizer.encode(ANSWER)[: request.params.max_new_tokens]
    if "and die" in prompt:
        return [*spoken(request, ids)[:2], EngineDied("the worker died")]
    if "slowly" not in prompt:
        return spoken(request, ids)

    async def breathe() -> None:
        await asyncio.sleep(0.05)

    return [step for event in spoken(request, ids, 1) for step in (event, breathe)]


async def serve(home: Path, url: str, port: int, admin_port: int) -> None:
    log_to_stderr("info")
    tokenizer = small_tokenizer()
    accounts = await Accounts.open(url, AccountsConfig(pepper_path=home / "pepper"))
    config = ServerConfig(home=home, port=port, admin_port=admin_port)
    services = Services(FakeEngine(script), tokenizer, ChatTemplate.own(tokenizer), accounts=accounts, config=config)
    await serve_until_stopped(build_app(services), build_admin_app(services), config)
    await accounts.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@dataclass
class PaidServer:
    """One server process; several may share `home` and its database."""

    home: Path
    log: Path
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    database: str = ""
    program: str = "tests.server.paid_server"

    def __post_init__(self) -> None:
        self.database = self.database or f"sqlite:///{self.home}/books.db"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def start(self) -> PaidServer:
        command = [sys.executable, "-m", self.program, str(self.home), self.database]
        with self.log.open("a") as sink:
            self.process = subprocess.Popen([*command, str(self.port), str(self.admin_port)], stderr=sink)
        return self

    def wait_ready(self) -> PaidServer:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"not ready: {self.log.read_text()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
