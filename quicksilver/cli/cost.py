"""`quicksilver cost`: tokens per hour of a machine and cost per million tokens, from measured figures only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from quicksilver.cli.console import errors, out
from quicksilver.evals.throughput import Cost, Throughput, choose, cost_of, read_results

DEFAULT_RESULTS = Path("benchmarks/results")
PATHS = {"engine": "engine without HTTP", "server": "server over HTTP"}


def cost(
    price: Annotated[float, typer.Option(min=0.0, help="Price of the machine per hour, in any currency.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Model; default: every measured one.")] = "",
    streams: Annotated[int, typer.Option(min=0, help="Concurrent requests; 0: every measured number.")] = 0,
    hardware: Annotated[str, typer.Option(help="Part of the machine's name, such as H200.")] = "",
    measured: Annotated[
        Literal["", "engine", "server"], typer.Option(help="engine: without HTTP; server: over HTTP; default: both.")
    ] = "",
    utilisation: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the hour in which the machine has this load.")
    ] = 1.0,
    results: Annotated[Path, typer.Option(help="Folder of result files.")] = DEFAULT_RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute tokens per hour and cost per million tokens from measured figures."""
    chosen = choose(read_results(results), model, streams, hardware, measured)
    costs = [cost_of(each, price, utilisation) for each in chosen]
    if as_json:
        typer.echo(json.dumps([plain(each) for each in costs], indent=1))
        return
    for table in _tables(costs):
        out.print(table)
    errors.print(f"Output tokens at {utilisation:.0%} of the measured load; the price is {price:g} per hour.")


def plain(cost: Cost) -> dict[str, object]:
    return {
        **asdict(cost.measured),
        "tokens_per_hour": round(cost.tokens_per_hour),
        "price_per_million_tokens": round(cost.price_per_million, 6),
    }


def _tables(costs: list[Cost]) -> Iterator[Table]:
    """One table for each model, machine and path."""
    for (model, hardware, path), group in groupby(costs, lambda each: _place(each.measured)):
        table = Table("streams", "tokens/s", "M tokens/hour", "price/M tokens", "measured in", title_justify="left")
        table.title, table.columns[-1].overflow = f"{model} on {hardware}, {PATHS[path]}", "fold"
        for each in group:
            found, millions = each.measured, each.tokens_per_hour / 1e6
            figures = (f"{found.tokens_per_s:,.0f}", f"{millions:,.1f}", f"{each.price_per_million:.4f}")
            table.add_row(str(found.streams), *figures, found.file)
        yield table


def _place(measured: Throughput) -> tuple[str, str, str]:
    return measured.model, measured.hardware, measured.path
