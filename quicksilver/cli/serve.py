"""`quicksilver serve`: starts the HTTP API, the playground and the engine worker.

A setting is taken from its flag, else from its environment variable, else from the TOML file. The worker process loads
the model. This process handles HTTP and does not import torch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.panel import Panel

from quicksilver.cli import options
from quicksilver.cli.console import errors
from quicksilver.cli.tables import TABLES, read_tables
from quicksilver.constrain.compile.pool import CompilePool, PoolConfig
from quicksilver.core import EngineInfo
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest, QuicksilverError
from quicksilver.hub.resolve import ModelFiles, default_home, resolve
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import LOOPBACK_HOSTS, ModelCard, ServerConfig, Timeouts
from quicksilver.server.encoding.pool import EncoderPool
from quicksilver.server.http.logs import log_to_stderr
from quicksilver.server.run import check_address, check_ports, run, serve_until_stopped
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.worker.client import RemoteEngine
from quicksilver.worker.program import WorkerConfig

if TYPE_CHECKING:
    from quicksilver.accounts.config import AccountsConfig
    from quicksilver.accounts.service import Accounts


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """All settings of one `serve` command."""

    checkpoint: ModelFiles
    server: ServerConfig
    worker: WorkerConfig
    # Database URL and configuration of the accounts, or None to serve without accounts.
    accounts: tuple[str, AccountsConfig] | None
    compile_pool: PoolConfig


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the values of the TOML file as defaults of the options."""
    if path is not None:
        try:
            settings = tomllib.loads(path.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise InvalidRequest(f"cannot read {path}: {error}", param="config") from error
        options_by_name = {str(option.name) for option in context.command.params}
        unknown = set(settings) - options_by_name - set(TABLES)
        if unknown:
            raise InvalidRequest(f"{path}: unknown setting {sorted(unknown)[0]!r}", param="config")
        tables = read_tables(settings, path)
        with_flag = {name: value for name, value in tables.get("engine", {}).items() if name in options_by_name}
        context.default_map = {**with_flag, **{name: settings[name] for name in settings if name not in TABLES}}
        context.obj = tables
    return path


def serve(
    context: typer.Context,
    model: options.Model = options.DEFAULT_MODEL,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8480,
    admin_port: options.AdminPort = None,
    accounts: options.WithAccounts = False,
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
    signup_credits: options.SignupCredits = options.DEFAULT_CREDITS,
    allow_anonymous: options.AllowAnonymous = False,
    allow_host: options.AllowHost = [],  # noqa: B006
    allow_origin: options.AllowOrigin = [],  # noqa: B006
    log_level: options.LogLevel = "info",
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    matmul: options.Matmul = "fastest",
    threads: options.Threads = 0,
    yarn: options.Yarn = 1.0,
    context_len: options.ContextLen = options.ENGINE.context_len,
    max_running: options.MaxRunning = options.ENGINE.max_running,
    max_waiting: options.MaxWaiting = options.ENGINE.max_waiting,
    max_rows: options.MaxRows = options.ENGINE.max_rows,
    kv_bytes: options.KvBytes = options.ENGINE.kv_bytes,
    tree_rows: options.TreeRows = options.ENGINE.tree_rows,
    cuda_graphs: options.CudaGraphs = options.ENGINE.cuda_graphs,
    config: Annotated[
        Path | None, typer.Option(callback=_read_config, is_eager=True, envvar="QUICKSILVER_CONFIG", help="TOML file.")
    ] = None,
) -> None:
    """Serve a model over HTTP: OpenAI's and Mercury's API, and the playground at /."""
    log_to_stderr(log_level)
    checkpoint = resolve(model)
    tables: dict[str, dict[str, Any]] = context.obj or {}
    server = ServerConfig(
        host=host,
        port=port,
        admin_port=_admin_port(port, admin_port),
        hosts=(*LOOPBACK_HOSTS, *allow_host),
        origins=tuple(allow_origin),
        allow_anonymous=allow_anonymous,
        home=default_home(),
        card=_card(checkpoint),
        timeouts=Timeouts(**tables.get("timeouts", {})),
        **tables.get("limits", {}),
    )
    check_address(server, has_accounts=accounts)
    check_ports(server)
    load = {"device": device, "weights": weights, "threads": threads, "yarn": yarn}
    worker = WorkerConfig(model, load, _engine_settings(context, tables.get("engine", {})))
    database = options.accounts_database(database_url, pepper, signup_credits) if accounts else None
    run(_run(ServeSettings(checkpoint, server, worker, database, PoolConfig(**tables.get("compile_pool", {})))))


def _engine_settings(context: typer.Context, table: dict[str, Any]) -> dict[str, Any]:
    """The fields of EngineConfig from the file and from the flags. Values out of range are refused here, before the
    worker starts."""
    flags = {field.name: context.params[field.name] for field in fields(EngineConfig) if field.name in context.params}
    EngineConfig(**(settings := {**table, **flags}))
    return settings


def _admin_port(port: int, chosen: int | None) -> int:
    """Follows the main port, so that a second server needs one option only."""
    if chosen is not None:
        return chosen
    return 0 if port == 0 else port + 1 if port < 65535 else port - 1


def _card(checkpoint: ModelFiles) -> ModelCard:
    return ModelCard(id=checkpoint.name, name=f"quicksilver {checkpoint.name}")


async def _run(settings: ServeSettings) -> None:
    async with AsyncExitStack() as stack:
        with errors.status(f"loading {settings.checkpoint.name}"):
            engine = await stack.enter_async_context(_engine(settings.worker))
        pool = await stack.enter_async_context(_compile_pool(settings.compile_pool))
        accounts = await stack.enter_async_context(_accounts(*settings.accounts)) if settings.accounts else None
        tokenizer = Tokenizer.for_model(settings.checkpoint.weights, settings.checkpoint.skill)
        template = ChatTemplate.for_tokenizer(tokenizer)
        encoders = await stack.enter_async_context(_encoders(tokenizer, template))
        services = Services(engine, tokenizer, template, pool, accounts, settings.server, encoders)

        def announce(config: ServerConfig) -> None:
            examples = _client_examples(engine.info, config, "qs-…" if accounts else "none")
            errors.print(examples, soft_wrap=True, markup=False, highlight=False)
            # The panel is printed last, so that the URL is the last thing on the screen.
            errors.print(_panel(engine.info, config))

        await serve_until_stopped(build_app(services), build_admin_app(services), settings.server, announce)


@asynccontextmanager
async def _engine(worker: WorkerConfig) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(worker.command())
    try:
        yield await engine.start()
    finally:
        await engine.close()


@asynccontextmanager
async def _compile_pool(config: PoolConfig) -> AsyncIterator[CompilePool]:
    pool = CompilePool(config)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


@asynccontextmanager
async def _encoders(tokenizer: Tokenizer, template: ChatTemplate) -> AsyncIterator[EncoderPool]:
    pool = EncoderPool(tokenizer, template)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


@asynccontextmanager
async def _accounts(url: str, config: AccountsConfig) -> AsyncIterator[Accounts]:
    """Open the accounts database. The first start creates the admin key and prints it once."""
    from quicksilver.accounts.service import Accounts

    accounts = await Accounts.open(url, config)
    try:
        if first := await accounts.bootstrap():
            errors.print(f"[bold]admin key, shown once:[/] {first.secret}", soft_wrap=True)
        watch = asyncio.create_task(_stop_when_broken(accounts))
        try:
            yield accounts
        finally:
            watch.cancel()
    finally:
        await accounts.close()
    if accounts.needs_restart:
        raise QuicksilverError("the disk failed to store the ledger (fsync error); check the disk, then start again")


async def _stop_when_broken(accounts: Accounts) -> None:
    """Drain and stop after a failed fsync: only a new process can read what the disk really holds."""
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


def _client_examples(info: EngineInfo, config: ServerConfig, key: str) -> str:
    """Commands to paste. They are printed outside the panel, because its border would be copied too."""
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
