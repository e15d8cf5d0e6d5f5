"""`quicksilver serve`: the API, its playground and the engine worker, from flags > environment > TOML.

The model is loaded by the worker process; this one only speaks HTTP and never imports torch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import uvloop
from rich.panel import Panel

from quicksilver.cli import options
from quicksilver.cli.console import errors
from quicksilver.constrain.compile.pool import CompilePool
from quicksilver.core import EngineInfo
from quicksilver.errors import InvalidRequest, QuicksilverError
from quicksilver.hub.resolve import Checkpoint, default_home, resolve
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import ModelCard, ServerConfig
from quicksilver.server.http.logs import log_to_stderr
from quicksilver.server.run import check_address, check_ports, serve_until_stopped
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.worker.client import RemoteEngine
from quicksilver.worker.program import WorkerConfig

if TYPE_CHECKING:
    from quicksilver.accounts.config import AccountsConfig
    from quicksilver.accounts.service import Accounts


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `serve` was asked for."""

    checkpoint: Checkpoint
    server: ServerConfig
    worker: WorkerConfig
    books: tuple[str, AccountsConfig] | None
    """Database of the accounts and how they are kept; None serves without."""


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Values of the TOML file become the defaults of options that neither flag nor environment sets."""
    if path is not None:
        try:
            settings = tomllib.loads(path.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise InvalidRequest(f"cannot read {path}: {error}", param="config") from error
        unknown = set(settings) - {str(option.name) for option in context.command.params}
        if unknown:
            raise InvalidRequest(f"{path}: unknown setting {sorted(unknown)[0]!r}", param="config")
        context.default_map = settings
    return path


def serve(
    model: options.Model = options.DEFAULT_MODEL,
    host: Annotated[str, typer.Option(envvar="QUICKSILVER_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="QUICKSILVER_PORT", min=0, max=65535)] = 8480,
    admin_port: Annotated[int, typer.Option(envvar="QUICKSILVER_ADMIN_PORT", min=0, max=65535)] = 8481,
    accounts: Annotated[
        bool, typer.Option(envvar="QUICKSILVER_ACCOUNTS", help="Ask for keys; books in the home folder or at the URL.")
    ] = False,
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
    signup_credits: options.SignupCredits = options.DEFAULT_CREDITS,
    allow_anonymous: Annotated[
        bool, typer.Option(envvar="QUICKSILVER_ALLOW_ANONYMOUS", help="Listen beyond loopback without keys.")
    ] = False,
    allow_host: Annotated[
        list[str], typer.Option(envvar="QUICKSILVER_ALLOW_HOST", help="Host names to answer to, besides loopback.")
    ] = [],  # noqa: B006
    allow_origin: Annotated[
        list[str], typer.Option(envvar="QUICKSILVER_ALLOW_ORIGIN", help="Web origins that may call from a browser.")
    ] = [],  # noqa: B006
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(envvar="QUICKSILVER_LOG_LEVEL")
    ] = "info",
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    gpu_weights: options.GpuWeights = "bfloat16",
    gpu_products: options.GpuProducts = "fastest",
    threads: options.Threads = 0,
    yarn: options.Yarn = 1.0,
    config: Annotated[
        Path | None, typer.Option(callback=_read_config, is_eager=True, envvar="QUICKSILVER_CONFIG", help="TOML file.")
    ] = None,
) -> None:
    """Serve a model over HTTP: OpenAI's and Mercury's API, and the playground at /."""
    log_to_stderr(log_level)
    checkpoint = resolve(model)
    server = ServerConfig(host=host, port=port, admin_port=admin_port, allow_anonymous=allow_anonymous)
    server = replace(server, hosts=(*server.hosts, *allow_host), origins=tuple(allow_origin))
    server = replace(server, home=default_home(), card=_card(checkpoint))
    check_address(server, has_accounts=accounts)
    check_ports(server)
    load = {"device": device, "weights": weights, "threads": threads, "yarn": yarn}
    worker = WorkerConfig(model, load, {"gpu_weights": gpu_weights, "gpu_products": gpu_products})
    books = options.books(database_url, pepper, signup_credits) if accounts else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(Plan(checkpoint, server, worker, books)))


def _card(checkpoint: Checkpoint) -> ModelCard:
    return ModelCard(id=checkpoint.name, name=f"quicksilver {checkpoint.name}")


async def _run(plan: Plan) -> None:
    async with AsyncExitStack() as stack:
        with errors.status(f"loading {plan.checkpoint.name}"):
            engine = await stack.enter_async_context(_engine(plan.worker))
        pool = await stack.enter_async_context(_grammars())
        accounts = await stack.enter_async_context(_accounts(*plan.books)) if plan.books else None
        tokenizer = Tokenizer.for_model(plan.checkpoint.weights, plan.checkpoint.skill)
        template = ChatTemplate.for_tokenizer(tokenizer)
        services = Services(engine, tokenizer, template, pool, accounts, plan.server)
        errors.print(_panel(engine.info, plan.server))
        words = _first_words(engine.info, plan.server, "qs-…" if accounts else "none")
        errors.print(words, soft_wrap=True, markup=False, highlight=False)
        await serve_until_stopped(build_app(services), build_admin_app(services), plan.server)


@asynccontextmanager
async def _engine(worker: WorkerConfig) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(worker.command())
    try:
        yield await engine.start()
    finally:
        await engine.close()


@asynccontextmanager
async def _grammars() -> AsyncIterator[CompilePool]:
    pool = CompilePool()
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


@asynccontextmanager
async def _accounts(url: str, config: AccountsConfig) -> AsyncIterator[Accounts]:
    """Opens the books; on the very first start the admin key is made and shown, once."""
    from quicksilver.accounts.service import Accounts

    accounts = await Accounts.open(url, config)
    try:
        if first := await accounts.bootstrap():
            errors.print(f"[bold]admin key, shown once:[/] {first.secret}", soft_wrap=True)
        watch = asyncio.create_task(_leave_when_broken(accounts))
        try:
            yield accounts
        finally:
            watch.cancel()
    finally:
        await accounts.close()
    if accounts.needs_restart:
        raise QuicksilverError("the disk refused to keep what the books wrote; check it, then start again")


async def _leave_when_broken(accounts: Accounts) -> None:
    """After a failed fsync only a fresh process can tell what the disk holds, so this one drains and goes."""
    while not accounts.needs_restart:
        await asyncio.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _panel(info: EngineInfo, config: ServerConfig) -> Panel:
    url = f"http://{config.host}:{config.port}"
    facts = {
        "model": f"{info.model} ({info.family}, {info.weight_bytes / 1e6:.0f} MB of weights, {info.dtype} activations)",
        "device": info.device,
        "memory": f"KV for {info.num_pages * info.page_size:,} tokens, context {info.context_len:,}",
        "playground": f"{url}/",
        "api": f"{url}/v1",
        "metrics": f"http://{config.admin_host}:{config.admin_port}/metrics",
    }
    lines = [f"[bold]{name:>10}[/]  {value}" for name, value in facts.items()]
    return Panel("\n".join(lines), title="quicksilver", expand=False)


def _first_words(info: EngineInfo, config: ServerConfig, key: str) -> str:
    """What to paste next, outside the panel, whose border would be copied along."""
    bearer = "" if key == "none" else f" -H 'authorization: Bearer {key}'"
    url = f"http://{config.host}:{config.port}/v1"
    body = f'{{"model": "{info.model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"""
curl {url}/chat/completions -H 'content-type: application/json'{bearer} -d '{body}'

from openai import OpenAI
client = OpenAI(base_url="{url}", api_key="{key}")
messages = [{{"role": "user", "content": "Hello"}}]
print(client.chat.completions.create(model="{info.model}", messages=messages).choices[0].message.content)
"""
