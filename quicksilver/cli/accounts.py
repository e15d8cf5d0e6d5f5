"""`quicksilver orgs|projects|keys|usage|prices|db`: manages the accounts database directly, with or without a server.

Uses the same `AdminService` as the admin HTTP API.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from quicksilver.accounts.identity import OPERATOR, parse_scopes
from quicksilver.accounts.records import (
    MICRO,
    AccountRecord,
    KeyDraft,
    KeyRecord,
    Limits,
    Price,
    UsageQuery,
    from_credits,
    in_credits,
)
from quicksilver.cli import options
from quicksilver.cli.account_names import find_id, project_titles
from quicksilver.cli.console import errors, out
from quicksilver.errors import QuicksilverError

if TYPE_CHECKING:
    from quicksilver.accounts.service import AdminService
    from quicksilver.accounts.store import Store

orgs = typer.Typer(help="Manage organisations and their credits.", no_args_is_help=True)
projects = typer.Typer(help="Manage projects of organisations.", no_args_is_help=True)
keys = typer.Typer(help="Manage API keys.", no_args_is_help=True)
prices = typer.Typer(help="Manage the price of each model.", no_args_is_help=True)
db = typer.Typer(help="Maintain the accounts database.", no_args_is_help=True)

Row = Mapping[str, str | int | None]
DAY_S = 86_400
SCOPES = ["inference", "usage"]

Name = Annotated[str, typer.Argument(help="Display name.")]
OrgId = Annotated[str, typer.Argument(help="Id or name of the organisation.")]
KeyId = Annotated[str, typer.Argument(help="Id or name of the key.")]
PerMinute = Annotated[int | None, typer.Option(min=0, help="Limit of the key per minute; default: none of its own.")]


@orgs.command("list")
def orgs_list(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """List organisations with their balances."""
    with _admin(database_url, pepper) as admin:
        _show([_org_row(org) for org in admin.organizations.list_accounts(OPERATOR, "org")])


@orgs.command("create")
def orgs_create(name: Name, database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Create an organisation with a default project and the sign-up credits."""
    with _admin(database_url, pepper) as admin:
        org = admin.organizations.create_org(OPERATOR, name)
        project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    _show([{**_org_row(org), "project_id": project.id}])


@orgs.command("credit")
def orgs_credit(
    org: OrgId,
    credits: Annotated[int, typer.Argument(min=1, help="Whole credits to add.")],
    reference: Annotated[str, typer.Option(help="Reason. Each reference is accepted once.")],
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Add credits to an organisation."""
    with _admin(database_url, pepper) as admin:
        org_id = find_id(admin, "org", org)
        _show([_org_row(admin.organizations.add_credits(OPERATOR, org_id, credits * MICRO, reference))])


@projects.command("list")
def projects_list(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """List projects with their organisations and budgets."""
    with _admin(database_url, pepper) as admin:
        titles = project_titles(admin)
        _show([_project_row(one, titles[one.id]) for one in admin.organizations.list_accounts(OPERATOR, "project")])


@projects.command("create")
def projects_create(
    name: Name,
    org: Annotated[str, typer.Option(help="Id or name of the organisation.")],
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Create a project in an organisation."""
    with _admin(database_url, pepper) as admin:
        project = admin.organizations.create_project(OPERATOR, find_id(admin, "org", org), name)
        _show([_project_row(project, project_titles(admin)[project.id])])


@projects.command("consent")
def projects_consent(
    project: Annotated[str, typer.Argument(help="Id or name of the project, or name of its organisation.")],
    may_leave: Annotated[
        bool, typer.Option("--may-leave/--may-not-leave", help="Whether its prompts may be sent to upstreams.")
    ],
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Set whether prompts of a project may leave the server, for hybrid routing."""
    with _admin(database_url, pepper) as admin:
        found = admin.organizations.set_may_leave(OPERATOR, find_id(admin, "project", project), may_leave)
        _show([_project_row(found, project_titles(admin)[found.id])])


@keys.command("list")
def keys_list(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """List keys. Of each secret only a prefix is shown."""
    with _admin(database_url, pepper) as admin:
        titles = project_titles(admin)
        _show([_key_row(key, titles) for key in admin.keys.list_keys(OPERATOR)])


@keys.command("create")
def keys_create(
    name: Name,
    project: Annotated[str, typer.Option(help="Id or name of the project, or name of its organisation.")],
    scope: Annotated[
        list[str], typer.Option(help="inference, usage, keys, metrics or admin; default: inference and usage.")
    ] = SCOPES,
    model: Annotated[list[str], typer.Option(help="Models that the key may use; default: all.")] = [],  # noqa: B006
    days: Annotated[int, typer.Option(min=0, help="Days until the key expires; 0: never.")] = 0,
    budget: Annotated[str, typer.Option(help="Credits that the key may spend; default: no limit of its own.")] = "",
    requests: PerMinute = None,
    input_tokens: PerMinute = None,
    output_tokens: PerMinute = None,
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Create a key and print its secret, which cannot be shown again. The id is printed on stderr."""
    limits = Limits(requests, input_tokens, output_tokens)
    draft = KeyDraft(
        name,
        scopes=parse_scopes(scope),
        models=frozenset(model) or None,
        expires_at=int(time.time()) + days * DAY_S if days else None,
        budget=from_credits(budget, "budget") if budget else None,
        limits=None if limits == Limits() else limits,
    )
    with _admin(database_url, pepper) as admin:
        draft = replace(draft, project_id=find_id(admin, "project", project))
        key = admin.keys.create_key(OPERATOR, draft)
    typer.echo(f"created {key.id}", err=True)
    typer.echo(key.secret)


@keys.command("rotate")
def keys_rotate(
    key_id: KeyId,
    overlap_s: Annotated[int, typer.Option(min=0, help="Seconds for which the old secret stays valid.")] = 0,
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Create a new secret for a key and print it."""
    with _admin(database_url, pepper) as admin:
        typer.echo(admin.keys.rotate_key(OPERATOR, find_id(admin, "key", key_id), overlap_s).secret)


@keys.command("revoke")
def keys_revoke(key_id: KeyId, database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Revoke a key. Running servers refuse it within a second."""
    with _admin(database_url, pepper) as admin:
        found = find_id(admin, "key", key_id)
        admin.organizations.disable(OPERATOR, found)
    typer.echo(f"revoked {found}", err=True)


def usage(
    days: Annotated[int, typer.Option(min=1, max=366, help="Number of days, including today.")] = 7,
    by: Annotated[list[str], typer.Option(help="Group by model, key, project or user.")] = ["model"],  # noqa: B006
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Show tokens and cost of each day (UTC)."""
    end = (int(time.time()) // DAY_S + 1) * DAY_S
    query = UsageQuery(end - days * DAY_S, end, "1d", tuple(by))
    with _admin(database_url, pepper) as admin:
        buckets = admin.usage(OPERATOR, query)
    _show([_usage_row(bucket.start, asdict(line)) for bucket in buckets for line in bucket.lines])


@prices.command("list")
def prices_list(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """List the credits per token of each model; `*` is the price of all others."""
    with _admin(database_url, pepper) as admin:
        _show(_price_rows(admin))


@prices.command("set")
def prices_set(
    model: Annotated[str, typer.Argument(help="Model name.")],
    input: Annotated[int, typer.Argument(help="Micro-credits per input token.")],
    cached: Annotated[int, typer.Argument(help="Micro-credits per input token found in the prefix cache.")],
    output: Annotated[int, typer.Argument(help="Micro-credits per output token.")],
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Set the price of a model from the next request on."""
    with _admin(database_url, pepper) as admin:
        admin.organizations.set_price(OPERATOR, model, Price(input, cached, output))
        _show(_price_rows(admin))


@db.command("upgrade")
def db_upgrade(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Upgrade the schema."""
    from quicksilver.accounts.migrations import upgrade

    with _store(database_url, pepper) as store:
        typer.echo("\n".join(upgrade(store)) or "up to date")


@db.command("check")
def db_check(database_url: options.DatabaseUrl = "", pepper: options.Pepper = None) -> None:
    """Recompute all sums and check all references. Fails if anything is inconsistent."""
    from quicksilver.accounts.maintenance import audit

    with _store(database_url, pepper) as store:
        findings = audit(store)
    if findings:
        raise QuicksilverError("; ".join(findings))
    typer.echo("the ledger is consistent")


@db.command("backup")
def db_backup(
    target: Annotated[Path, typer.Argument(help="New file.")],
    database_url: options.DatabaseUrl = "",
    pepper: options.Pepper = None,
) -> None:
    """Write a consistent copy of the database, also while a server runs."""
    from quicksilver.accounts.maintenance import backup

    with _store(database_url, pepper) as store:
        backup(store, target)


def _show(rows: list[Row]) -> None:
    """Prints a table; if it is wider than the terminal, one block per row with a line for each column."""
    if not rows:
        errors.print("no entries")
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    if Measurement.get(out, out.options.update(width=10_000), table).maximum <= out.width:
        out.print(table)
        return
    width = max(len(name) for name in rows[0])
    blocks = ("\n".join(f"{name:<{width}}  {_cell(value)}".rstrip() for name, value in row.items()) for row in rows)
    out.print("\n\n".join(blocks), markup=False, highlight=False, soft_wrap=True)


def _cell(value: str | int | None) -> str:
    return "" if value is None else str(value)


def _org_row(org: AccountRecord) -> Row:
    return {
        "id": org.id,
        "name": org.name,
        "state": "disabled" if org.is_disabled else "active",
        "spent": in_credits(org.spent),
        "balance": "unlimited" if org.balance is None else in_credits(org.balance),
    }


def _project_row(project: AccountRecord, title: str) -> Row:
    return {
        "id": project.id,
        "name": title,
        "created": _date(project.created_at),
        "state": "disabled" if project.is_disabled else "active",
        "spent": in_credits(project.spent),
        "budget": _budget(project),
        "may_leave": "yes" if project.may_leave else "no",
    }


def _key_row(key: KeyRecord, projects: Mapping[str, str]) -> Row:
    account = key.account
    limits = {name: value for name, value in asdict(account.limits).items() if value is not None}
    return {
        "id": account.id,
        "name": account.name,
        "project": projects.get(account.path.split("/")[1], ""),
        "key": " ".join(key.displays),
        "state": "revoked" if account.is_disabled else "active",
        "scopes": " ".join(sorted(key.scopes)),
        "models": "all" if key.models is None else " ".join(sorted(key.models)),
        "expires": "never" if key.expires_at is None else _date(key.expires_at),
        "spent": in_credits(account.spent),
        "budget": _budget(account),
        "limits": " ".join(_limit(name, value) for name, value in limits.items()) or "none of its own",
    }


def _budget(account: AccountRecord) -> str:
    if account.allowance is None:
        return "unlimited"
    return in_credits(account.allowance) + (f" per {account.period}" if account.period else "")


def _limit(name: str, value: int) -> str:
    return f"{name}={value}" if name == "concurrency" else f"{name}={value}/min"


def _price_rows(admin: AdminService) -> list[Row]:
    listed = {**admin.organizations.list_prices(), "*": admin.organizations.config.default_price}
    return [_price_row(model, price) for model, price in listed.items()]


def _price_row(model: str, price: Price) -> Row:
    return {"model": model, **{name: in_credits(amount) for name, amount in asdict(price).items()}}


def _usage_row(start: int, line: dict[str, str | int | None]) -> Row:
    """Without the columns that the query did not group by."""
    shown = {name: value for name, value in line.items() if value is not None}
    return {"day": _date(start), **shown, "cost": in_credits(int(line["cost"] or 0))}


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


@contextmanager
def _store(url: str, pepper: Path | None) -> Iterator[Store]:
    from quicksilver.accounts.store import Store

    database, config = options.accounts_database(url, pepper)
    store = Store(database, config.lock_wait_s)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _admin(url: str, pepper: Path | None) -> Iterator[AdminService]:
    from quicksilver.accounts.service import open_admin

    admin = open_admin(*options.accounts_database(url, pepper))
    try:
        yield admin
    finally:
        admin.store.close()
