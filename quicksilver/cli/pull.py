"""`quicksilver pull NAME`: download a model's base file with a progress bar, or use a local folder."""

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
    name: Annotated[str, typer.Argument(help="Catalogue name; omit it to list all names.")] = "",
    folder: Annotated[
        Path | None,
        typer.Option("--from", help="Local safetensors folder of the checkpoint; not copied."),
    ] = None,
) -> None:
    """Download a model's weights and check them against the catalogue. An interrupted download is resumed."""
    if not name:
        for model in load_catalogue().models.values():
            typer.echo(f"{model.name:16} {model.about}")
        return
    if folder is not None:
        typer.echo(str(_use_folder(name, folder)))
        return
    disown(name)
    was_there = is_pulled(name)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors) as progress:
        task = progress.add_task(f"pulling {name}", total=None)
        path = pull_files(name, report=lambda done, total: progress.update(task, completed=done, total=total))
    if not was_there:
        with errors.status("packing weights for this machine"):
            _prepare(name)
    typer.echo(str(path))


def _use_folder(name: str, folder: Path) -> Path:
    """Link the folder to the name. The link is removed if the model's adapters do not fit the checkpoint."""
    link = adopt(name, folder)
    try:
        _check(name)
        with errors.status("packing weights for this machine"):
            _prepare(name)
    except QuicksilverError:
        disown(name)
        raise
    return link


def _check(name: str) -> None:
    """Check from the headers that the family is supported and that the adapters fit the checkpoint's shapes."""
    from quicksilver.hub.resolve import resolve
    from quicksilver.model.adapters import check_fits, load_adapter
    from quicksilver.model.files.inspect import describe

    checkpoint = resolve(name)
    config = describe(checkpoint.weights).config
    for adapter in (checkpoint.skill, checkpoint.canvas):
        if adapter is not None:
            check_fits(config, load_adapter(adapter))


def _prepare(name: str) -> None:
    """Pack the weights and compile the CPU kernels now, so that the first start does not have to wait for it."""
    # Imported here so that listing the catalogue does not import torch.
    from quicksilver.core import DecodeParams, DecoderName, DecoderParams
    from quicksilver.engine.load import pick_device
    from quicksilver.llm import LLM

    if pick_device("auto") == "cpu":
        LLM(name).generate("Hello", DecodeParams(8, decoder=DecoderParams(name=DecoderName.VERIFY, canvas_len=4)))
