"""The list of commands. An expected error prints one line that says what to do and exits with code 2.

Only the module of the command that is called is imported, so that `--help` and light commands start at once. The help
of the other commands comes from `COMMANDS`; a test compares it with their docstrings.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer

from quicksilver import __version__
from quicksilver.cli.config_file import check_syntax
from quicksilver.errors import QuicksilverError


class Command(NamedTuple):
    """A command, or a group of commands, and where it is defined."""

    name: str
    module: str
    attribute: str
    help: str


COMMANDS = (
    Command("generate", "generate", "generate", "Continue a text, or answer it with --chat."),
    Command("chat", "chat", "chat", "Chat with a model in the terminal, or with a running server."),
    Command(
        "serve",
        "serve",
        "serve",
        "Serve a model over HTTP: the APIs of OpenAI and of Inception (Mercury), and the playground at /.",
    ),
    Command(
        "route",
        "route",
        "route",
        "Route requests to several servers: prefix affinity, health checks, retries before the first byte.",
    ),
    Command("batch", "batch", "batch", "Answer every line of a batch file; a second run continues where one ended."),
    Command("mcp", "mcp", "mcp", "Offer a running server to agents as tools, over MCP on standard input and output."),
    Command("pull", "pull", "pull", "Download a model's weights and check them."),
    Command("inspect", "inspect", "inspect", "Describe a checkpoint: family, sizes, number formats, memory plan."),
    Command("bench", "bench", "bench", "Measure every decoder on a few prompts."),
    Command("cost", "cost", "cost", "Compute tokens per hour and cost per million tokens from measured figures."),
    Command("doctor", "doctor", "doctor", "Check Python, torch, device, memory, disk and models."),
    Command("eval", "evals", "evaluate", "Measure quality and speed on held-out tasks."),
    Command("train", "train", "train", "Make an adapter from a recipe (see recipes/ and docs/guides/training.md)."),
    Command(
        "tune", "tune", "tune", "Fine-tune a model on your own data; the same command continues an interrupted job."
    ),
    Command("convert", "train", "convert", "Turn a Llama or Qwen checkpoint into a diffusion model."),
    Command("usage", "accounts", "usage", "Show tokens and cost of each day (UTC)."),
    Command("version", "version", "version", "Print the version."),
)
GROUPS = (
    Command("cluster", "cluster", "cluster", "Run engine replicas on a Ray cluster."),
    Command("orgs", "accounts", "orgs", "Manage organisations and their credits."),
    Command("projects", "accounts", "projects", "Manage projects of organisations."),
    Command("keys", "accounts", "keys", "Manage API keys."),
    Command("prices", "accounts", "prices", "Manage the price of each model."),
    Command("hybrid", "hybrid", "hybrid", "Explain hybrid routing."),
    Command("feedback", "feedback", "feedback", "Capture suggestions and export them with their feedback."),
    Command("db", "accounts", "db", "Maintain the accounts database."),
)
# They parse their own arguments with argparse, so that `python -m quicksilver.training.run` needs no typer.
PARSED_BY_THEMSELVES = ("train", "convert")


def build_app(only: str | None = None) -> typer.Typer:
    """The command line. With `only`, the other commands have a name and a help text and cannot be run."""
    app = typer.Typer(
        name="quicksilver",
        help="An open diffusion-LLM engine and server.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        callback=_options,
    )
    for command in COMMANDS:
        passed_through = command.name in PARSED_BY_THEMSELVES
        settings: dict[str, Any] = {
            "allow_extra_args": passed_through,
            "ignore_unknown_options": passed_through,
            **({"help_option_names": list[str]()} if passed_through else {}),
        }
        is_loaded = only is None or command.name == only
        app.command(command.name, context_settings=settings)(_load(command) if is_loaded else _placeholder(command))
    for group in GROUPS:
        is_loaded = only is None or group.name == only
        app.add_typer(_load(group) if is_loaded else _empty_group(), name=group.name, help=group.help)
    return app


def _load(command: Command) -> Any:
    return getattr(import_module(f"quicksilver.cli.{command.module}"), command.attribute)


def _placeholder(command: Command) -> Callable[[], None]:
    def placeholder() -> None:
        raise AssertionError(f"{command.name} is not loaded")

    placeholder.__doc__ = command.help
    return placeholder


def _empty_group() -> typer.Typer:
    group = typer.Typer()
    group.callback()(lambda: None)
    return group


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


@cache
def _whole_app() -> typer.Typer:
    return build_app()


def __getattr__(name: str) -> typer.Typer:
    """`app`: every command. It is built on first use, since that imports all of them."""
    if name == "app":
        return _whole_app()
    raise AttributeError(name)


def main(argv: list[str] | None = None) -> None:
    # OpenMP threads that spin while idle slow down a busy machine. torch reads this at its first import.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # At exit the collector would visit every object of torch, which takes half a second.
    atexit.register(gc.freeze)
    words = sys.argv[1:] if argv is None else argv
    try:
        command = next((word for word in words if not word.startswith("-")), "")
        if command == "serve":
            check_syntax(words)
        build_app(command)(args=words)
    except QuicksilverError as error:
        from quicksilver.cli.console import print_error

        print_error(error.message)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
