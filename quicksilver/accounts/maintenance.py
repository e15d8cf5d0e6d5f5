"""An audit that recomputes every counter from ledger rows and grants, and backups."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select, text

from quicksilver.accounts.records import State
from quicksilver.accounts.schema import accounts, grants, ledger, usage
from quicksilver.accounts.store import Store
from quicksilver.errors import InvalidRequest, QuicksilverError


def audit(store: Store) -> list[str]:
    """Every inconsistency, as text; empty if there is none. Reads one snapshot and does not block a running server."""
    with store.snapshot() as connection:
        return [
            *_check_file(connection),
            *_check_accounts(connection),
            *_check_credits(connection),
            *_check_usage(connection),
        ]


def backup(store: Store, target: Path) -> None:
    """Copies the database while it is in use. Back up the pepper file too: without it no API key works."""
    dump = _backup_sqlite if store.is_sqlite else _backup_postgres
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise InvalidRequest(f"the backup cannot be written: {error.strerror}", param="target") from None
    try:
        dump(store, target)
    except BaseException:
        target.unlink()
        raise


def _backup_sqlite(store: Store, target: Path) -> None:
    with closing(sqlite3.connect(str(store.url.database))) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


def _backup_postgres(store: Store, target: Path) -> None:
    program = shutil.which("pg_dump")
    if program is None:
        raise QuicksilverError("pg_dump is not installed; install PostgreSQL's client programs", code="no_pg_dump")
    url = store.url
    # Passed in the environment, since arguments are visible to other users.
    wanted = {"PGHOST": url.host or url.query.get("host"), "PGPORT": url.port, "PGUSER": url.username}
    wanted |= {"PGPASSWORD": url.password, "PGDATABASE": url.database}
    env = {**os.environ, **{name: str(value) for name, value in wanted.items() if value is not None}}
    done = subprocess.run([program, "--format=custom", "--file", str(target)], env=env, capture_output=True)
    if done.returncode:
        raise QuicksilverError("pg_dump failed; run it by hand to see why", code="backup_failed")


def _check_file(connection: Connection) -> list[str]:
    if connection.dialect.name != "sqlite":
        return []
    findings = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check")) if row[0] != "ok"]
    return findings + [
        f"a row of {row[0]} has a broken reference" for row in connection.execute(text("PRAGMA foreign_key_check"))
    ]


def _check_accounts(connection: Connection) -> list[str]:
    """The counters of each account must equal the sums of its ledger rows."""
    sums = select(
        ledger.c.path, ledger.c.state, func.sum(ledger.c.cost), func.sum(ledger.c.reserved), func.count()
    ).group_by(ledger.c.path, ledger.c.state)
    spent: Counter[str] = Counter()
    reserved: Counter[str] = Counter()
    in_flight: Counter[str] = Counter()
    for path, state, cost, held, num_rows in connection.execute(sums):
        for account_id in path.split("/"):
            spent[account_id] += int(cost)
            if state == State.OPEN:
                reserved[account_id] += int(held)
                in_flight[account_id] += num_rows
    findings = []
    for row in connection.execute(select(accounts)):
        expected = (spent[row.id], reserved[row.id], in_flight[row.id])
        if expected != (row.spent, row.reserved, row.in_flight):
            found = (row.spent, row.reserved, row.in_flight)
            findings.append(f"{row.id}: spent, reserved, in flight are {found}; the ledger sums to {expected}")
    return findings


def _check_credits(connection: Connection) -> list[str]:
    query = select(grants.c.org_id, func.sum(grants.c.amount)).group_by(grants.c.org_id)
    granted = {org_id: int(amount) for org_id, amount in connection.execute(query)}
    orgs = connection.execute(select(accounts).where(accounts.c.kind == "org", accounts.c.allowance.is_not(None))).all()
    wrong = [row.id for row in orgs if row.allowance != granted.get(row.id, 0)]
    below = [row.id for row in orgs if row.spent + row.reserved > row.allowance]
    return [f"{org_id}: the credits differ from the grants" for org_id in wrong] + [
        f"{org_id}: the spending exceeds the grants" for org_id in below
    ]


def _check_usage(connection: Connection) -> list[str]:
    names = ("input_tokens", "cached_tokens", "output_tokens", "cost")
    settled = select(ledger.c.key_id, ledger.c.model, func.count(), *(func.sum(ledger.c[name]) for name in names))
    settled = settled.where(ledger.c.state == State.SETTLED).group_by(ledger.c.key_id, ledger.c.model)
    rolled_up = select(
        usage.c.key_id, usage.c.model, func.sum(usage.c.requests), *(func.sum(usage.c[name]) for name in names)
    ).group_by(usage.c.key_id, usage.c.model)
    expected, found = _by_key(connection, settled), _by_key(connection, rolled_up)
    wrong = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return [f"{key_id}: usage of {model} differs from the ledger" for key_id, model in wrong]


def _by_key(connection: Connection, query: Any) -> dict[tuple[str, str], tuple[int, ...]]:
    return {(row[0], row[1]): tuple(int(value) for value in row[2:]) for row in connection.execute(query)}
