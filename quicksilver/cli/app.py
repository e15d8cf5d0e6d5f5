"""The list of commands. An expected error prints one line that says what to do and exits with code 2."""

from __future__ import annotations

import os
import sys

import typer

from quicksilver import __version__
from quicksilver.cli import accounts, bench, chat, doctor, evals, generate, inspect, pull, serve, train
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
# These two parse their own arguments with argparse, so that `python -m quicksilver.training.run` needs no typer.
_passed_through = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}
app.command(context_settings=_passed_through)(train.train)
app.command(context_settings=_passed_through)(train.convert)
app.command()(accounts.usage)
app.add_typer(accounts.orgs, name="orgs")
app.add_typer(accounts.keys, name="keys")
app.add_typer(accounts.prices, name="prices")
app.add_typer(accounts.db, name="db")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main(argv: list[str] | None = None) -> None:
    # OpenMP threads that spin while idle slow down a busy machine. torch reads this at its first import.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app(args=argv)
    except QuicksilverError as error:
        errors.print(f"[bold red]error[/] {error.message}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
