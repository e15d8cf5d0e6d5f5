"""`quicksilver serve`: the API, its playground and the engine worker, from flags > environment > TOML.

The model is loaded by the worker process; this one only speaks HTTP and never imports torch.
"""

from __future__ import annotations

import asyncio
import logging
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.panel import Panel

from quicksilver.cli import options
from quicksilver.cli.console import errors
from quicksilver.engine.remote import RemoteEngine
from quicksilver.errors import InvalidRequest
from quicksilver.hub.resolve import Checkpoint, default_home, resolve
from quicksilver.server.admin import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import ModelCard, ServerConfig
from quicksilver.server.life import check_address, serve_until_stopped
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.worker import WorkerConfig


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
    allow_anonymous: Annotated[bool, typer.Option(help="Listen beyond loopback without keys.")] = False,
    allow_host: Annotated[list[str], typer.Option(help="Host names to answer to, besides loopback.")] = [],  # noqa: B006
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = 0,
    config: Annotated[
        Path | None, typer.Option(callback=_read_config, is_eager=True, envvar="QUICKSILVER_CONFIG", help="TOML file.")
    ] = None,
) -> None:
    """Serve a model over HTTP: OpenAI's and Mercury's API, and the playground at /."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    checkpoint = resolve(model)
    server = ServerConfig(host=host, port=port, admin_port=admin_port, allow_anonymous=allow_anonymous)
    server = replace(server, hosts=(*server.hosts, *allow_host), home=default_home(), card=_card(checkpoint))
    check_address(server, has_accounts=False)
    worker = WorkerConfig(model, load={"device": device, "weights": weights, "threads": threads})
    asyncio.run(_run(checkpoint, server, worker))


def _card(checkpoint: Checkpoint) -> ModelCard:
    return ModelCard(id=checkpoint.name, name=f"quicksilver {checkpoint.name}")


async def _run(checkpoint: Checkpoint, config: ServerConfig, worker: WorkerConfig) -> None:
    with errors.status(f"loading {checkpoint.name}"):
        engine = await RemoteEngine(worker.command()).start()
    try:
        tokenizer = Tokenizer.for_model(checkpoint.weights, checkpoint.skill)
        services = Services(engine, tokenizer, ChatTemplate.for_tokenizer(tokenizer), config=config)
        errors.print(_panel(engine, config))
        await serve_until_stopped(build_app(services), build_admin_app(services), config)
    finally:
        await engine.close()


def _panel(engine: RemoteEngine, config: ServerConfig) -> Panel:
    info, url = engine.info, f"http://{config.host}:{config.port}"
    kv_tokens = info.num_pages * info.page_size
    facts: dict[str, Any] = {
        "model": f"{info.model} ({info.family}, {info.weight_bytes / 1e6:.0f} MB as {info.dtype})",
        "device": info.device,
        "memory": f"KV for {kv_tokens:,} tokens, context {info.context_len:,}",
        "playground": f"{url}/",
        "api": f"{url}/v1   metrics: http://{config.admin_host}:{config.admin_port}/metrics",
    }
    lines = [f"[bold]{name:>10}[/]  {value}" for name, value in facts.items()]
    lines += ["", f"curl {url}/v1/chat/completions -H 'content-type: application/json' \\"]
    lines += [f'  -d \'{{"model": "{info.model}", "messages": [{{"role": "user", "content": "Hello"}}]}}\'']
    lines += ["", f'[dim]OpenAI(base_url="{url}/v1", api_key="none")[/]']
    return Panel("\n".join(lines), title="quicksilver", expand=False)
