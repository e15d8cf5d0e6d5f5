"""The verbs, and how their errors reach a person: one line that says what to do, exit code 2, no traceback."""

from __future__ import annotations

import os
import sys

import typer

from quicksilver import __version__
from quicksilver.cli import accounts as books
from quicksilver.cli import bench, chat, doctor, evals, generate, inspect, pull, serve, train
from quicksilver.cli.console import errors
from quicksilver.errors import QuicksilverError

app = typer.Typer(
    name="quicksilver",
    help="An open diffusion-LLM engine and server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(generate.generate)
app.command()(chat.chat)
app.command()(serve.serve)
app.command()(pull.pull)
app.command()(inspect.inspect)
app.command()(bench.bench)
app.command()(doctor.doctor)
app.command("eval")(evals.evaluate)
# The training room parses its own words, so that `python -m quicksilver.training.run` needs no typer.
_own_words = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}
app.command(context_settings=_own_words)(train.train)
app.command(context_settings=_own_words)(train.convert)
app.command()(books.usage)
app.add_typer(books.orgs, name="orgs")
app.add_typer(books.keys, name="keys")
app.add_typer(books.prices, name="prices")
app.add_typer(books.db, name="db")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main(argv: list[str] | None = None) -> None:
    # Threads that spin while they wait make a busy machine many times slower; read when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app(args=argv)
    except QuicksilverError as error:
        errors.print(f"[bold red]error[/] {error.message}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
