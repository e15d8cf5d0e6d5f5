"""A whole server process for tests of its end: `python -m tests.server.slow_server HOME PORT DRAIN_S`.

Its engine writes one word, then waits until the file HOME/go exists.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI

from quicksilver.core import Request
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig, Timeouts
from quicksilver.server.run import run, serve_until_stopped
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.support.fake_engine import FakeEngine, Step, spoken
from tests.support.small_tokenizer import small_tokenizer


def make_services(home: Path, port: int, drain_s: float) -> Services:
    async def wait_for_go() -> None:
        while not (home / "go").exists():
            await asyncio.sleep(0.01)

    def script(request: Request) -> list[Step]:
        first, *rest = spoken(request, small_tokenizer().encode("hello world"))
        return [first, wait_for_go, *rest]

    tokenizer = small_tokenizer()
    config = ServerConfig(home=home, port=port, admin_port=0, timeouts=replace(Timeouts(), drain_s=drain_s))
    return Services(FakeEngine(script), tokenizer, ChatTemplate.own(tokenizer), config=config)


def make_apps(services: Services) -> tuple[FastAPI, FastAPI]:
    return build_app(services), build_admin_app(services)


def main(home: Path, port: int, drain_s: float) -> int:
    services = make_services(home, port, drain_s)
    return 0 if run(serve_until_stopped(*make_apps(services), services.config)) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
