"""`quicksilver pull NAME`: download a model of the catalogue or of the Hugging Face hub, or use a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quicksilver.cli.console import errors
from quicksilver.cli.download import progress_bar, pull_hub
from quicksilver.errors import QuicksilverError
from quicksilver.hub.catalogue import load_catalogue
from quicksilver.hub.pull import adopt, disown, is_pulled
from quicksilver.hub.pull import pull as pull_files
from quicksilver.hub.snapshots import parse_hub_name


def pull(
    name: Annotated[
        str,
        typer.Argument(help="Catalogue name, or owner/name[@revision] on the hub; omit it to list the catalogue."),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option("--from", help="Local safetensors folder of the checkpoint; not copied."),
    ] = None,
) -> None:
    """Download a model's weights and check them. An interrupted download is resumed."""
    if not name:
        for model in load_catalogue().models.values():
            typer.echo(f"{model.name:16} {model.about}")
        return
    hub_name = parse_hub_name(name)
    if hub_name is not None and folder is None:
        typer.echo(str(pull_hub(hub_name)))
        return
    if folder is not None:
        typer.echo(str(_use_folder(name, folder)))
        return
    disown(name)
    was_there = is_pulled(name)
    if was_there:
        path = pull_files(name)
    else:
        with progress_bar(f"pulling {name}") as report:
            path = pull_files(name, report=report)
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
