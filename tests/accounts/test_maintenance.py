"""The audit finds every kind of damage, and backups open again."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from sqlalchemy import text

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Close, How, Reserve
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.maintenance import backup, check
from quicksilver.accounts.records import Order
from quicksilver.accounts.service import Desk, open_desk
from quicksilver.accounts.store import Store
from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest, QuicksilverError
from tests.accounts.conftest import Customer, apply, make_customer
from tests.accounts.postgres import find_binaries


@pytest.fixture
def used(desk: Desk, books: Ledger, customer: Customer) -> Customer:
    apply(desk, books, *(Reserve(customer.identity, Order(name, "nano", 1, 1)) for name in ("open", "done")))
    apply(desk, books, Close("done", How.SETTLE, Usage(1, 0, 1)))
    return customer


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("UPDATE purses SET spent = spent + 1 WHERE kind = 'project'", "the ledger says"),
        ("UPDATE purses SET reserved = 0 WHERE kind = 'key'", "the ledger says"),
        ("UPDATE purses SET in_flight = 9 WHERE kind = 'org'", "the ledger says"),
        ("UPDATE purses SET allowance = allowance + 1 WHERE kind = 'org'", "differ from what was granted"),
        ("UPDATE usage SET output_tokens = 5", "usage of nano differs"),
        ("DELETE FROM usage", "usage of nano differs"),
    ],
)
def test_audit_finds_damage(desk: Desk, used: Customer, damage: str, finding: str) -> None:
    assert check(desk.store) == []
    with desk.store.write() as connection:
        connection.execute(text(damage))
    (found,) = check(desk.store)
    assert finding in found


def test_audit_looks_at_one_moment(desk: Desk, books: Ledger, used: Customer) -> None:
    """What is settled while the audit runs belongs to the next one."""
    with desk.store.snapshot() as connection:
        before = connection.execute(text("SELECT count(*) FROM ledger WHERE state = 'settled'")).scalar_one()
        apply(desk, books, Close("open", How.SETTLE, Usage(1, 0, 1)))
        after = connection.execute(text("SELECT count(*) FROM ledger WHERE state = 'settled'")).scalar_one()
    assert (before, after) == (1, 1)
    assert check(desk.store) == []


def test_sqlite_backup_is_private_and_whole(sqlite_url: str, config: AccountsConfig, tmp_path: Path) -> None:
    desk = open_desk(sqlite_url, config)
    customer = make_customer(desk)
    backup(desk.store, tmp_path / "copy.db")
    with pytest.raises(InvalidRequest, match="exists"):
        backup(desk.store, tmp_path / "copy.db")
    desk.store.close()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    copy = open_desk(f"sqlite:///{tmp_path}/copy.db", config)
    assert copy.directory.get_purse(OPERATOR, customer.org_id).name == "acme"
    assert check(copy.store) == []
    copy.store.close()


def test_postgres_backup_is_a_dump(
    postgres_url: str, config: AccountsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = find_binaries()
    assert binaries is not None
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    desk = open_desk(postgres_url, config)
    backup(desk.store, tmp_path / "copy.dump")
    assert (tmp_path / "copy.dump").read_bytes().startswith(b"PGDMP")
    assert stat.S_IMODE((tmp_path / "copy.dump").stat().st_mode) == 0o600
    with pytest.raises(InvalidRequest, match="No such file"):
        backup(desk.store, tmp_path / "no such folder" / "copy.dump")
    desk.store.close()


def test_failed_dump_leaves_no_file(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "false")
    store = Store(postgres_url)
    with pytest.raises(QuicksilverError, match="pg_dump failed"):
        backup(store, tmp_path / "copy.dump")
    assert not (tmp_path / "copy.dump").exists()
    store.close()


def test_postgres_backup_says_what_is_missing(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    store = Store(postgres_url)
    with pytest.raises(QuicksilverError, match="not installed"):
        backup(store, tmp_path / "copy.dump")
    store.close()
