"""Keeping the books in order: an audit that recomputes every counter from the ledger, and backups.

The audit trusts nothing but ledger rows and grants. An empty list of findings means that the books are right.
"""

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
from quicksilver.accounts.schema import grants, ledger, purses, usage
from quicksilver.accounts.store import Store
from quicksilver.errors import InvalidRequest, QuicksilverError


def check(store: Store) -> list[str]:
    """Everything that is wrong with the books, in words. Looks at one moment while the server goes on."""
    with store.snapshot() as connection:
        return [
            *_check_file(connection),
            *_check_purses(connection),
            *_check_credits(connection),
            *_check_usage(connection),
        ]


def backup(store: Store, target: Path) -> None:
    """Copy the database while it is in use. The pepper is not in it: keep that elsewhere, or the copy opens no door."""
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
    # Through the environment, for arguments are visible to everyone on the machine.
    wanted = {"PGHOST": url.host or url.query.get("host"), "PGPORT": url.port, "PGUSER": url.username}
    wanted |= {"PGPASSWORD": url.password, "PGDATABASE": url.database}
    env = {**os.environ, **{name: str(value) for name, value in wanted.items() if value is not None}}
    done = subprocess.run([program, "--format=custom", "--file", str(target)], env=env, capture_output=True)
    if done.returncode:
        raise QuicksilverError("pg_dump failed; run it by hand to see why", code="backup_failed")


def _check_file(connection: Connection) -> list[str]:
    if connection.dialect.name != "sqlite":
        return []
    said = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check")) if row[0] != "ok"]
    return said + [f"a row of {row[0]} points nowhere" for row in connection.execute(text("PRAGMA foreign_key_check"))]


def _check_purses(connection: Connection) -> list[str]:
    """Each purse must show what the ledger rows below it add up to."""
    sums = select(
        ledger.c.path, ledger.c.state, func.sum(ledger.c.cost), func.sum(ledger.c.reserved), func.count()
    ).group_by(ledger.c.path, ledger.c.state)
    spent: Counter[str] = Counter()
    reserved: Counter[str] = Counter()
    in_flight: Counter[str] = Counter()
    for path, state, cost, held, num_rows in connection.execute(sums):
        for purse_id in path.split("/"):
            spent[purse_id] += int(cost)
            if state == State.OPEN:
                reserved[purse_id] += int(held)
                in_flight[purse_id] += num_rows
    findings = []
    for row in connection.execute(select(purses)):
        truth = (spent[row.id], reserved[row.id], in_flight[row.id])
        if truth != (row.spent, row.reserved, row.in_flight):
            shown = (row.spent, row.reserved, row.in_flight)
            findings.append(f"{row.id}: spent, reserved, in flight are {shown}; the ledger says {truth}")
    return findings


def _check_credits(connection: Connection) -> list[str]:
    given = select(grants.c.org_id, func.sum(grants.c.amount)).group_by(grants.c.org_id)
    granted = {org_id: int(amount) for org_id, amount in connection.execute(given)}
    orgs = connection.execute(select(purses).where(purses.c.kind == "org", purses.c.allowance.is_not(None))).all()
    wrong = [row.id for row in orgs if row.allowance != granted.get(row.id, 0)]
    below = [row.id for row in orgs if row.spent + row.reserved > row.allowance]
    return [f"{org_id}: credits differ from what was granted" for org_id in wrong] + [
        f"{org_id}: more is spent than was granted" for org_id in below
    ]


def _check_usage(connection: Connection) -> list[str]:
    names = ("input_tokens", "cached_tokens", "output_tokens", "cost")
    settled = select(ledger.c.key_id, ledger.c.model, func.count(), *(func.sum(ledger.c[name]) for name in names))
    settled = settled.where(ledger.c.state == State.SETTLED).group_by(ledger.c.key_id, ledger.c.model)
    shown = select(
        usage.c.key_id, usage.c.model, func.sum(usage.c.requests), *(func.sum(usage.c[name]) for name in names)
    ).group_by(usage.c.key_id, usage.c.model)
    truth, told = _by_key(connection, settled), _by_key(connection, shown)
    wrong = sorted(place for place in truth.keys() | told.keys() if truth.get(place) != told.get(place))
    return [f"{key_id}: usage of {model} differs from the ledger" for key_id, model in wrong]


def _by_key(connection: Connection, query: Any) -> dict[tuple[str, str], tuple[int, ...]]:
    return {(row[0], row[1]): tuple(int(value) for value in row[2:]) for row in connection.execute(query)}
