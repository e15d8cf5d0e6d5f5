"""Runs the server of one `serve` command: engine workers, helper processes, accounts, hybrid routing, listeners."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.panel import Panel

from quicksilver.cli.addresses import shown_url
from quicksilver.cli.admin_key import hand_over
from quicksilver.cli.console import errors, loading
from quicksilver.cli.serve_adapters import check_adapters
from quicksilver.cli.serve_settings import ModelSettings, ServeSettings
from quicksilver.cli.serve_tracing import open_tracing
from quicksilver.constrain.compile.pool import CompilePool
from quicksilver.core import EngineClient, EngineInfo
from quicksilver.dialect import ADAPTER_DECODERS
from quicksilver.errors import QuicksilverError
from quicksilver.hub.resolve import ModelFiles
from quicksilver.server.adapters import AdapterEngine
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.encoding.pool import EncoderConfig, EncoderPool
from quicksilver.server.hybrid.policy import HybridPolicy
from quicksilver.server.hybrid.state import Hybrid
from quicksilver.server.run import serve_until_stopped
from quicksilver.server.services import ServedModel, Services
from quicksilver.server.trainer_process import TrainerProcess
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.tuning.settings import TrainerSettings
from quicksilver.worker.pool import EnginePool, PooledModel, estimate_bytes

if TYPE_CHECKING:
    from quicksilver.accounts.config import AccountsConfig
    from quicksilver.accounts.service import Accounts


async def run_server(settings: ServeSettings) -> None:
    async with AsyncExitStack() as stack:
        with loading(settings.default.files.name):
            pool = await stack.enter_async_context(engine_pool(settings))
            await check_adapters(settings.models, pool)
        services = await open_services(stack, settings, pool.engines)
        await stack.enter_async_context(trainer_process(settings, services, pool.engines))

        def announce(config: ServerConfig) -> None:
            print_announcement(settings, pool.engines[settings.default.files.name].info, config)

        await serve_until_stopped(build_app(services), build_admin_app(services), settings.server, announce)


async def open_services(
    stack: AsyncExitStack, settings: ServeSettings, engines: Mapping[str, EngineClient]
) -> Services:
    """The Services of the default model, around the given engines. `stack` closes what is opened here."""
    compile_pool = await stack.enter_async_context(CompilePool(settings.compile_pool))
    accounts: Accounts | None = None
    if settings.accounts:
        accounts = await stack.enter_async_context(open_accounts(*settings.accounts, settings.admin_key_file))
    tracing = await stack.enter_async_context(open_tracing(settings.server.otlp_endpoint))
    served = dict[str, ServedModel]()
    for model in settings.models:
        served[model.files.name] = await _served_model(stack, model, settings, engines, served)
    default = served.pop(settings.default.files.name)
    return Services(
        default.engine,
        default.tokenizer,
        default.template,
        compile_pool,
        accounts,
        settings.server,
        default.encoders,
        others=served,
        names=settings.name_table(),
        hybrid=await stack.enter_async_context(_hybrid(settings.hybrid)) if settings.hybrid else None,
        tracing=tracing,
    )


async def _served_model(
    stack: AsyncExitStack,
    model: ModelSettings,
    settings: ServeSettings,
    engines: Mapping[str, EngineClient],
    served: Mapping[str, ServedModel],
) -> ServedModel:
    """Tokenizer and encoders are shared with the base unless only one has a skill adapter, which adds tokens."""
    engine = served_engine(model, engines)
    base = next((each for each in settings.models if each.files.name == model.base), None)
    if base is not None and (base.files.skill is None) == (model.files.skill is None):
        return replace(served[base.files.name], card=model.card, engine=engine, base=model.parent)
    tokenizer = Tokenizer.for_model(model.files.weights, model.files.skill)
    template = ChatTemplate.for_tokenizer(tokenizer, settings.system_prompt)
    # One process per model where there are several, since each holds a tokenizer.
    config = EncoderConfig(num_processes=2 if len(settings.with_workers) == 1 else 1)
    encoders = await stack.enter_async_context(EncoderPool(tokenizer, template, config))
    return ServedModel(model.card, engine, tokenizer, template, encoders, model.parent)


def served_engine(model: ModelSettings, engines: Mapping[str, EngineClient]) -> EngineClient:
    """The engine of a model, or of its base with its adapter."""
    if model.base is None or model.adapter is None:
        return engines[model.files.name]
    return AdapterEngine(model.files.name, engines[model.base], model.adapter)


@asynccontextmanager
async def engine_pool(settings: ServeSettings) -> AsyncIterator[EnginePool]:
    models = [
        PooledModel(model.files.name, model.worker, model.is_pinned, estimate_bytes(model.files.weights))
        for model in settings.with_workers
    ]
    # A spare worker would be a second copy of the base, which a companion on the same base is meant to save.
    has_companion = any(model.is_companion for model in settings.models)
    pool = EnginePool(models, replace(settings.model_pool, spare=settings.model_pool.spare and not has_companion))
    try:
        yield await pool.start()
    finally:
        await pool.close()


@asynccontextmanager
async def trainer_process(
    settings: ServeSettings, services: Services, engines: Mapping[str, EngineClient]
) -> AsyncIterator[None]:
    """Works on fine-tuning jobs inside the block, in a process of its own."""
    if not (settings.server.tunes and settings.server.stores):
        yield
        return
    trainer = TrainerProcess(services.storage, engines, trainer_settings(settings))
    watching = asyncio.create_task(trainer.watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def trainer_settings(settings: ServeSettings) -> TrainerSettings:
    return TrainerSettings(
        home=settings.server.home,
        models={model.files.name: model.files for model in settings.models},
        adapters={
            model.files.name: (model.base, Path(model.adapter.path))
            for model in settings.models
            if model.base is not None and model.adapter is not None
        },
        accounts=settings.accounts,
        device=settings.tuning.device,
        threads=settings.tuning.threads,
        evals=Path(settings.tuning.evals).absolute() if settings.tuning.evals else None,
        stored_bytes=settings.server.stored_bytes,
        max_jobs=settings.server.tuning_jobs,
        stored_days=settings.server.stored_days,
    )


@asynccontextmanager
async def _hybrid(policy: HybridPolicy) -> AsyncIterator[Hybrid]:
    hybrid = Hybrid.open(policy)
    try:
        yield hybrid
    finally:
        await hybrid.close()


@asynccontextmanager
async def open_accounts(url: str, config: AccountsConfig, key_file: Path | None) -> AsyncIterator[Accounts]:
    """Open the accounts database. The first start creates the admin key and prints it, or writes it to `key_file`."""
    from quicksilver.accounts.service import Accounts

    accounts = await Accounts.open(url, config)
    try:
        if first := await accounts.bootstrap():
            hand_over(first, key_file)
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


def print_announcement(settings: ServeSettings, info: EngineInfo, config: ServerConfig) -> None:
    examples = _client_examples(info, config, "qs-…" if settings.accounts else "none")
    errors.print(examples, soft_wrap=True, markup=False, highlight=False)
    # The panel is printed last, so that the URL is the last thing on the screen.
    errors.print(_panel(settings, info, config))


def _panel(settings: ServeSettings, info: EngineInfo, config: ServerConfig) -> Panel:
    url = shown_url(config.host, config.port)
    facts = {
        "model": f"{info.model} ({info.family}, {_megabytes(info.weight_bytes)} of weights, {info.dtype} activations)",
        "also": ", ".join(settings.ids[1:]),
        "adapter": _adapters(settings.default.files, info),
        "device": info.device,
        "memory": f"KV for {info.num_pages * info.page_size:,} tokens, context {info.context_len:,}",
        "playground": f"{url}/",
        "api": f"{url}/v1",
        "metrics": f"{shown_url(config.admin_host, config.admin_port)}/metrics",
    }
    lines = [f"[bold]{name:>10}[/]  {escape(value)}" for name, value in facts.items() if value]
    return Panel("\n".join(lines), title="quicksilver", expand=False)


def _megabytes(num_bytes: int) -> str:
    """Models of toy size have less than one megabyte."""
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e6:.2f} MB"


def _adapters(files: ModelFiles, info: EngineInfo) -> str:
    """The adapters that were found; for an autoregressive model without a canvas adapter, the command that makes one.
    Diffusion checkpoints draft without an adapter."""
    skill = f"skill {files.skill.name}" if files.skill else ""
    canvas = f"canvas {files.canvas.name}" if files.canvas else ""
    if not canvas and set(info.decoders) == set(ADAPTER_DECODERS):
        canvas = f"no canvas: quicksilver convert {files.weights}"
    return ", ".join(filter(None, (canvas, skill)))


def _client_examples(info: EngineInfo, config: ServerConfig, key: str) -> str:
    """Commands to paste. They are printed outside the panel, because its border would be copied too."""
    bearer = "" if key == "none" else f" -H 'authorization: Bearer {key}'"
    url = f"{shown_url(config.host, config.port)}/v1"
    body = f'{{"model": "{info.model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"""
curl {url}/chat/completions -H 'content-type: application/json'{bearer} -d '{body}'

from openai import OpenAI
client = OpenAI(base_url="{url}", api_key="{key}")
messages = [{{"role": "user", "content": "Hello"}}]
print(client.chat.completions.create(model="{info.model}", messages=messages).choices[0].message.content)
"""
