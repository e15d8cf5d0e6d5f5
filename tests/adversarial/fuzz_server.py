"""The whole server with accounts, grammars and encoders around a scripted engine, as a process of its own.

`python -m tests.adversarial.fuzz_server HOME PORT ADMIN_PORT` serves until it is told to stop.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.service import Accounts
from quicksilver.constrain.compile.pool import CompilePool
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.encoding.pool import EncoderPool
from quicksilver.server.http.logs import log_to_stderr
from quicksilver.server.run import run, serve_until_stopped
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from tests.contract.live import answer_by_prompt
from tests.support.fake_engine import FakeEngine
from tests.support.small_tokenizer import small_tokenizer


def database_url(home: Path) -> str:
    return f"sqlite:///{home}/books.db"


def accounts_config(home: Path) -> AccountsConfig:
    return AccountsConfig(pepper_path=home / "pepper")


async def serve(home: Path, port: int, admin_port: int) -> None:
    log_to_stderr("warning")
    tokenizer = small_tokenizer()
    template = ChatTemplate.own(tokenizer)
    grammars, encoders = CompilePool(), EncoderPool(tokenizer, template)
    accounts = await Accounts.open(database_url(home), accounts_config(home))
    await asyncio.gather(grammars.start(), encoders.start())
    config = ServerConfig(home=home, port=port, admin_port=admin_port, frames_per_s=1e9)
    engine = FakeEngine(answer_by_prompt)
    services = Services(engine, tokenizer, template, grammars, accounts, config, encoders)
    try:
        await serve_until_stopped(build_app(services), build_admin_app(services), config)
    finally:
        await asyncio.gather(grammars.stop(), encoders.stop(), accounts.close())


if __name__ == "__main__":
    run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
