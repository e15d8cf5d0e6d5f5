"""`quicksilver inspect NAME`: family, sizes and memory needs of a checkpoint, read from its headers only."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import typer
from rich.table import Table

from quicksilver.cli.console import out
from quicksilver.hub.resolve import resolve


def inspect(model: Annotated[str, typer.Argument(help="Catalogue name or path.")]) -> None:
    """Describe a checkpoint: family, sizes, number formats, memory plan."""
    from quicksilver.model.files.inspect import describe

    checkpoint = resolve(model)
    summary = describe(checkpoint.weights)
    table = Table("property", "value", show_header=False)
    table.add_row("weights", str(checkpoint.weights))
    for field in fields(summary):
        table.add_row(field.name, str(getattr(summary, field.name)))
    for kind in ("skill", "canvas"):
        table.add_row(f"{kind} adapter", str(getattr(checkpoint, kind) or "none"))
    out.print(table)
