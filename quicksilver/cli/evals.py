"""`quicksilver eval`: measure one model, or compare two, and print a table.

The model runs in this process or, with `--url`, in a running server. `quicksilver eval verify` checks published
figures instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quicksilver.cli import options
from quicksilver.cli.claims import DEFAULT_CLAIMS, verify_claims
from quicksilver.cli.console import errors, print_error
from quicksilver.core import DecoderName, DecoderParams
from quicksilver.errors import InvalidRequest, QuicksilverError
from quicksilver.evals.claims import DEFAULT_MINUTES
from quicksilver.evals.run import Watch

if TYPE_CHECKING:
    from quicksilver.evals.report import Report
    from quicksilver.evals.run import EvalSettings


class Action(StrEnum):
    TASKS = "tasks"
    VERIFY = "verify"


def evaluate(
    action: Annotated[
        Action, typer.Argument(help="`tasks` measures a model; `verify` checks the published figures of a checkout.")
    ] = Action.TASKS,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the evaluation data; see docs/guides/evaluation.md.")
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    against: Annotated[str, typer.Option(help="Another model for the second column, such as the parent.")] = "",
    tasks: Annotated[list[str], typer.Option("--task", help="Task or group; may be repeated.")] = ["sanity"],  # noqa: B006
    limit: Annotated[int, typer.Option(min=0, help="Items of each task; 0 for all.")] = 0,
    decoder: Annotated[list[DecoderName], typer.Option(help="May be repeated.")] = [DecoderName.VERIFY],  # noqa: B006
    canvas_len: options.CanvasLen = 16,
    device: options.Device = "auto",
    weights: options.Weights = "auto",
    url: Annotated[
        str,
        typer.Option(help="Evaluate a running server, such as http://127.0.0.1:8480/v1."),
    ] = "",
    key: Annotated[str, typer.Option(envvar="QUICKSILVER_API_KEY", help="API key for --url.")] = "",
    out: Annotated[Path | None, typer.Option(help="JSON file; for tasks a plot is drawn beside it.")] = None,
    claims: Annotated[Path, typer.Option(help="File with the claims, for verify.")] = DEFAULT_CLAIMS,
    claim: Annotated[list[str], typer.Option(help="Claim for verify; may be repeated. All if absent.")] = [],  # noqa: B006
    measure: Annotated[bool, typer.Option(help="Let verify run the commands of claims.")] = True,
    minutes: Annotated[
        float, typer.Option(min=0, help="Let verify run commands that are expected to take this long.")
    ] = DEFAULT_MINUTES,
) -> None:
    """Measure quality and speed on held-out tasks."""
    if action is Action.VERIFY:
        return verify_claims(claims, data, claim, measure, minutes, out)
    if data is None:
        raise InvalidRequest("eval needs --data, the folder with the evaluation data", param="data")
    from quicksilver.evals.report import write_reports
    from quicksilver.evals.run import EvalSettings
    from quicksilver.evals.table import compare, draw

    decoders = tuple(replace(DecoderParams(), name=name, canvas_len=canvas_len) for name in decoder)
    settings = EvalSettings(data, tuple(tasks), limit, decoders)
    if url and against:
        raise InvalidRequest("--against cannot be combined with --url", param="against")
    names = [model, against] if against else [model]
    runs = [_served(model, url, key, settings)] if url else [_report(name, device, weights, settings) for name in names]
    reports = [asyncio.run(run) for run in runs]
    typer.echo(compare(reports))
    if out is not None:
        write_reports(reports, out)
        draw(reports, out.with_suffix(".png"))
        errors.print(f"wrote {out} and {out.with_suffix('.png')}", markup=False, soft_wrap=True)


async def _report(model: str, device: str, weights: str, settings: EvalSettings) -> Report:
    from quicksilver.cli.evals import shown_progress
    from quicksilver.constrain.runtime.forced_prefix import ForcedPrefixes
    from quicksilver.evals.run import run_evals
    from quicksilver.worker.async_engine import AsyncEngine

    llm = options.open_llm(model, device, weights, threads=0)
    llm.engine.constraints = ForcedPrefixes.of(llm.tokenizer, llm.engine.info.vocab_size).constraint
    client = AsyncEngine(llm.engine)
    try:
        with shown_progress() as watch:
            return await run_evals(client, llm.tokenizer, llm.template, replace(settings, model=model), watch)
    finally:
        await client.close()


async def _served(model: str, url: str, key: str, settings: EvalSettings) -> Report:
    """Evaluate a running server. Tokenizer and template are read from the local checkpoint. If the server cannot be
    reached the exit code is 1, because the command line itself was correct."""
    from quicksilver.cli.evals import shown_progress
    from quicksilver.evals.catalogue import refuse_likelihoods
    from quicksilver.evals.http_link import Link
    from quicksilver.evals.run import run_evals
    from quicksilver.evals.served import connect
    from quicksilver.hub.resolve import resolve
    from quicksilver.text.chat import ChatTemplate
    from quicksilver.text.tokenizer import Tokenizer

    refuse_likelihoods(settings.tasks)
    checkpoint = resolve(model)
    tokenizer = Tokenizer.for_model(checkpoint.weights, checkpoint.skill)
    template = ChatTemplate.for_tokenizer(tokenizer)
    async with aclosing(Link(url, key)) as link:
        try:
            client = await connect(link, checkpoint.name, tokenizer, template)
        except QuicksilverError as error:
            print_error(error.message)
            raise typer.Exit(1) from error
        with shown_progress() as watch:
            return await run_evals(client, tokenizer, template, replace(settings, model=model), watch)


@contextmanager
def shown_progress() -> Iterator[Watch]:
    """Provide a progress callback that draws while the context is open."""
    try:
        from rich.progress import Progress, TaskID
    except ImportError:
        yield lambda label, done, count: None
        return
    with Progress() as progress:
        bars: dict[str, TaskID] = {}

        def watch(label: str, done: int, count: int) -> None:
            if label not in bars:
                bars[label] = progress.add_task(label, total=count)
            progress.update(bars[label], completed=done)

        yield watch
