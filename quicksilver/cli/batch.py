"""`quicksilver batch IN OUT`: answer the lines of a file in the format of OpenAI's batches, without a server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from quicksilver.cli import options
from quicksilver.cli.console import errors, loading
from quicksilver.cli.serve_run import engine_pool, open_services
from quicksilver.cli.serve_settings import ServeSettings, model_settings
from quicksilver.constrain.compile.pool import PoolConfig
from quicksilver.hub.resolve import default_home
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.endpoints.batches.offline import answer_file, open_lines, remove_torn_line
from quicksilver.server.endpoints.batches.wire import BatchLine


def batch(
    source: Annotated[Path, typer.Argument(help="JSON lines with custom_id, method, url and body.")],
    target: Annotated[Path, typer.Argument(help="Output file; lines that it answers already are skipped.")],
    model: options.Model = options.DEFAULT_MODEL,
    parallel: Annotated[int, typer.Option(min=1, max=256, help="Lines that are generated at the same time.")] = 8,
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = 0,
) -> None:
    """Answer every line of a batch file; a second run continues where one ended."""
    done = remove_torn_line(target)
    lines = [line for line in open_lines(source) if line.custom_id not in done]
    load = {"device": device, "weights": weights, "threads": threads, "yarn": 1.0}
    models = model_settings([model], [], load, {})
    config = ServerConfig(home=default_home(), card=models[0].card, stores=False)
    settings = ServeSettings(models, config, None, PoolConfig())
    num_failed = asyncio.run(_run(settings, lines, target, parallel)) if lines else 0
    errors.print(f"{len(lines)} lines answered, {num_failed} of them with an error, {len(done)} skipped")
    if num_failed:
        raise typer.Exit(1)


async def _run(settings: ServeSettings, lines: list[BatchLine], target: Path, parallel: int) -> int:
    num_failed = 0
    async with AsyncExitStack() as stack:
        with loading(settings.default.files.name):
            pool = await stack.enter_async_context(engine_pool(settings))
        app = build_app(await open_services(stack, settings, pool.engines))
        output = stack.enter_context(target.open("ab"))
        progress = stack.enter_context(Progress(console=errors))
        task = progress.add_task("lines", total=len(lines))

        def report(has_failed: bool) -> None:
            nonlocal num_failed
            num_failed += has_failed
            progress.advance(task)

        await answer_file(app, lines, output, parallel, report)
    return num_failed
