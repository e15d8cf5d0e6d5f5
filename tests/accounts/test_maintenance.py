"""The audit finds every kind of damage; backups can be opened."""

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
from quicksilver.accounts.maintenance import audit, backup
from quicksilver.accounts.records import Order
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.accounts.store import Store
from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest, QuicksilverError
from tests.accounts.conftest import Customer, apply, make_customer
from tests.accounts.postgres import find_binaries


@pytest.fixture
def used(admin: AdminService, books: Ledger, customer: Customer) -> Customer:
    apply(admin, books, *(Reserve(customer.identity, Order(name, "nano", 1, 1)) for name in ("open", "done")))
    apply(admin, books, Close("done", How.SETTLE, Usage(1, 0, 1)))
    return customer


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("UPDATE accounts SET spent = spent + 1 WHERE kind = 'project'", "the ledger sums to"),
        ("UPDATE accounts SET reserved = 0 WHERE kind = 'key'", "the ledger sums to"),
        ("UPDATE accounts SET in_flight = 9 WHERE kind = 'org'", "the ledger sums to"),
        ("UPDATE accounts SET allowance = allowance + 1 WHERE kind = 'org'", "differ from the grants"),
        ("UPDATE usage SET output_tokens = 5", "usage of nano differs"),
        ("DELETE FROM usage", "usage of nano differs"),
    ],
)
def test_audit_finds_damage(admin: AdminService, used: Customer, damage: str, finding: str) -> None:
    assert audit(admin.store) == []
    with admin.store.write() as connection:
        connection.execute(text(damage))
    (found,) = audit(admin.store)
    assert finding in found


def test_audit_reads_one_snapshot(admin: AdminService, books: Ledger, used: Customer) -> None:
    """What is settled while the audit runs belongs to the next one."""
    with admin.store.snapshot() as connection:
        before = connection.execute(text("SELECT count(*) FROM ledger WHERE state = 'settled'")).scalar_one()
        apply(admin, books, Close("open", How.SETTLE, Usage(1, 0, 1)))
        after = connection.execute(text("SELECT count(*) FROM ledger WHERE state = 'settled'")).scalar_one()
    assert (before, after) == (1, 1)
    assert audit(admin.store) == []


def test_sqlite_backup_is_private_and_complete(sqlite_url: str, config: AccountsConfig, tmp_path: Path) -> None:
    admin = open_admin(sqlite_url, config)
    customer = make_customer(admin)
    backup(admin.store, tmp_path / "copy.db")
    with pytest.raises(InvalidRequest, match="exists"):
        backup(admin.store, tmp_path / "copy.db")
    admin.store.close()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    copy = open_admin(f"sqlite:///{tmp_path}/copy.db", config)
    assert copy.organizations.get_account(OPERATOR, customer.org_id).name == "acme"
    assert audit(copy.store) == []
    copy.store.close()


def test_postgres_backup_is_a_dump(
    postgres_url: str, config: AccountsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = find_binaries()
    assert binaries is not None
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    admin = open_admin(postgres_url, config)
    backup(admin.store, tmp_path / "copy.dump")
    assert (tmp_path / "copy.dump").read_bytes().startswith(b"PGDMP")
    assert stat.S_IMODE((tmp_path / "copy.dump").stat().st_mode) == 0o600
    with pytest.raises(InvalidRequest, match="No such file"):
        backup(admin.store, tmp_path / "no such folder" / "copy.dump")
    admin.store.close()


def test_failed_dump_leaves_no_file(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "false")
    store = Store(postgres_url)
    with pytest.raises(QuicksilverError, match="pg_dump failed"):
        backup(store, tmp_path / "copy.dump")
    assert not (tmp_path / "copy.dump").exists()
    store.close()


def test_postgres_backup_without_pg_dump_is_an_error(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    store = Store(postgres_url)
    with pytest.raises(QuicksilverError, match="not installed"):
        backup(store, tmp_path / "copy.dump")
    store.close()
