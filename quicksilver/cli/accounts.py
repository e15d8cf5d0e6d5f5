"""`quicksilver orgs|keys|usage|prices|db`: the books from the command line.

Parses and prints; `accounts.commands` does it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from quicksilver.cli import options
from quicksilver.cli.console import errors, out
from quicksilver.errors import QuicksilverError

if TYPE_CHECKING:
    from quicksilver.accounts.commands import Row

orgs = typer.Typer(help="Organisations and their credits.", no_args_is_help=True)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
prices = typer.Typer(help="What a token costs.", no_args_is_help=True)
db = typer.Typer(help="The accounts database.", no_args_is_help=True)

SCOPES = ["inference", "usage"]

Name = Annotated[str, typer.Argument(help="A name for people.")]


def _show(rows: list[Row]) -> None:
    if not rows:
        errors.print("nothing yet")
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    out.print(table)


@orgs.command("list")
def orgs_list(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Every organisation with its balance."""
    from quicksilver.accounts import commands

    _show(commands.orgs_list(*options.accounts_database(database_url, pepper)))


@orgs.command("create")
def orgs_create(name: Name, database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """A new organisation with its default project and sign-up credits."""
    from quicksilver.accounts import commands

    _show([commands.orgs_create(*options.accounts_database(database_url, pepper), name)])


@orgs.command("credit")
def orgs_credit(
    org_id: Annotated[str, typer.Argument()],
    credits: Annotated[int, typer.Argument(min=1)],
    reference: Annotated[str, typer.Option(help="Why; the same reference is booked once.")],
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Add credits."""
    from quicksilver.accounts import commands

    _show([commands.orgs_credit(*options.accounts_database(database_url, pepper), org_id, credits, reference)])


@keys.command("list")
def keys_list(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Every key by its prefix; secrets are never shown again."""
    from quicksilver.accounts import commands

    _show(commands.keys_list(*options.accounts_database(database_url, pepper)))


@keys.command("create")
def keys_create(
    name: Name,
    project: Annotated[str, typer.Option(help="Project id, as `orgs create` shows it.")],
    scope: Annotated[
        list[str], typer.Option(help="inference, usage, keys, metrics, files, training or admin.")
    ] = SCOPES,
    model: Annotated[list[str], typer.Option(help="Models it may name; default: all.")] = [],  # noqa: B006
    days: Annotated[int, typer.Option(min=0, help="Days until it expires; 0 for never.")] = 0,
    budget: Annotated[str, typer.Option(help="Credits it may spend; default: no bound of its own.")] = "",
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """A new key. Its secret is printed once, to standard output."""
    from quicksilver.accounts import commands
    from quicksilver.accounts.identity import parse_scopes
    from quicksilver.accounts.records import from_credits
    from quicksilver.accounts.views import KeyDraft

    draft = KeyDraft(
        name,
        project,
        scopes=parse_scopes(scope),
        models=frozenset(model) or None,
        expires_at=int(time.time()) + days * 86_400 if days else None,
        budget=from_credits(budget, "budget") if budget else None,
    )
    typer.echo(commands.keys_create(*options.accounts_database(database_url, pepper), draft).secret)


@keys.command("rotate")
def keys_rotate(
    key_id: Annotated[str, typer.Argument()],
    overlap_s: Annotated[int, typer.Option(min=0, help="Seconds for which the old secret still works.")] = 0,
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """A new secret for a key."""
    from quicksilver.accounts import commands

    typer.echo(commands.keys_rotate(*options.accounts_database(database_url, pepper), key_id, overlap_s).secret)


@keys.command("revoke")
def keys_revoke(
    key_id: Annotated[str, typer.Argument()], database_url: options.DatabaseUrl = "", pepper: options.Pepper = None
) -> None:
    """Turn a key off, in every process, within a second."""
    from quicksilver.accounts import commands

    commands.keys_revoke(*options.accounts_database(database_url, pepper), key_id)


def usage(
    days: Annotated[int, typer.Option(min=1, max=366)] = 7,
    by: Annotated[list[str], typer.Option(help="model, key, project.")] = ["model"],  # noqa: B006
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Tokens and cost by day."""
    from quicksilver.accounts import commands

    _show(commands.usage_table(*options.accounts_database(database_url, pepper), days, tuple(by)))


@prices.command("list")
def prices_list(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Credits per token of models that have a price of their own."""
    from quicksilver.accounts import commands

    _show(commands.prices_list(*options.accounts_database(database_url, pepper)))


@prices.command("set")
def prices_set(
    model: Annotated[str, typer.Argument()],
    input: Annotated[int, typer.Argument(help="Micro-credits per input token.")],
    cached: Annotated[int, typer.Argument(help="Micro-credits per input token found in the cache.")],
    output: Annotated[int, typer.Argument(help="Micro-credits per output token.")],
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Price a model, from the next request on."""
    from quicksilver.accounts import commands
    from quicksilver.accounts.records import Price

    _show(commands.prices_set(*options.accounts_database(database_url, pepper), model, Price(input, cached, output)))


@db.command("upgrade")
def db_upgrade(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Bring the schema up to date."""
    from quicksilver.accounts import commands

    typer.echo("\n".join(commands.db_upgrade(*options.accounts_database(database_url, pepper))) or "up to date")


@db.command("check")
def db_check(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Prove the books: every sum, every reference. Fails if anything is off."""
    from quicksilver.accounts import commands

    faults = commands.db_check(*options.accounts_database(database_url, pepper))
    if faults:
        raise QuicksilverError("; ".join(faults))
    typer.echo("the books are right")


@db.command("backup")
def db_backup(
    target: Annotated[Path, typer.Argument()], database_url: options.DatabaseUrl = "", pepper: options.Pepper = None
) -> None:
    """Write a consistent copy while the server runs."""
    from quicksilver.accounts import commands

    commands.db_backup(*options.accounts_database(database_url, pepper), target)
