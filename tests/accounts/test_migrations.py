"""Migrations run once, leave no partial result, keep old rows, and match the schema of queries."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, inspect, text

from quicksilver.accounts import migrations
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.migrations import require_current, upgrade
from quicksilver.accounts.schema import TABLES
from quicksilver.accounts.store import Store
from quicksilver.errors import Conflict, QuicksilverError

OLD_ROWS = (
    "INSERT INTO purses (id, kind, path, name, created_at, allowance, spent) VALUES ('o', 'org', 'o', 'a', 1, 50, 30)",
    "INSERT INTO purses (id, kind, path, name, created_at, spent) VALUES ('p', 'project', 'o/p', 'default', 1, 30)",
    "INSERT INTO purses (id, kind, path, name, created_at, spent) VALUES ('k', 'key', 'o/p/k', 'key', 1, 30)",
    "INSERT INTO grants (org_id, amount, reference, granted_at) VALUES ('o', 50, 'sign-up', 1)",
    "INSERT INTO api_keys VALUES ('k', NULL, 'files inference training', NULL, NULL)",
    "INSERT INTO secrets VALUES ('digest', 'k', 'qs-abc', 1, NULL)",
    """INSERT INTO ledger (request_id, path, key_id, model, owner, state, created_at, closed_at, closed_by, max_input,
       max_output, input_price, cached_price, output_price, reserved, is_rated, has_claim, input_tokens, cost)
       VALUES ('r', 'o/p/k', 'k', 'nano', 'proc', 'settled', 1, 2, 'request', 3, 3, 10, 1, 100, 330, 1, 0, 3, 30)""",
    "INSERT INTO usage VALUES ('k', 'nano', 0, 1, 3, 0, 0, 30)",
    "INSERT INTO rate_buckets VALUES ('k', 1, 1, 3, 0)",
    "INSERT INTO owners VALUES ('proc', 7)",
)


@pytest.fixture
def store(empty_url: str) -> Store:
    return Store(empty_url)


def test_upgrade_runs_each_migration_once(store: Store) -> None:
    with pytest.raises(QuicksilverError, match="db upgrade"):
        require_current(store)
    assert upgrade(store) == ["m0001_books", "m0002_accounts", "m0003_objects", "m0004_may_leave"]
    assert upgrade(store) == []
    require_current(store)
    store.close()


def test_migrated_tables_match_the_schema_of_queries(store: Store) -> None:
    upgrade(store)
    with store.read() as connection:
        look = inspect(connection)
        found = {table.name: {column["name"] for column in look.get_columns(table.name)} for table in TABLES}
        extra = set(look.get_table_names()) - set(found)
    assert found == {table.name: set(table.c.keys()) for table in TABLES}
    assert extra == {"schema_migrations"}
    store.close()


def test_rows_and_references_of_an_old_database_survive_the_rename(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database of version 1 with rows in every renamed table, upgraded to the current version."""
    monkeypatch.setattr(migrations, "MIGRATIONS", (migrations.m0001_books,))
    upgrade(store)
    with store.write() as connection:
        for statement in OLD_ROWS:
            connection.execute(text(statement))
    monkeypatch.undo()
    assert upgrade(store) == ["m0002_accounts", "m0003_objects", "m0004_may_leave"]
    require_current(store)
    with store.read() as connection:
        kept = connection.execute(text("SELECT id, path, spent FROM accounts ORDER BY path")).all()
        bucket = connection.execute(text("SELECT account_id, requests FROM rate_buckets")).one()
        heartbeat = connection.execute(text("SELECT heartbeat FROM owners")).scalar_one()
    assert [tuple(row) for row in kept] == [("o", "o", 30), ("p", "o/p", 30), ("k", "o/p/k", 30)]
    assert tuple(bucket) == ("k", 1)
    assert heartbeat == 7
    assert audit(store) == []
    for broken in ("INSERT INTO api_keys VALUES ('absent', NULL, '', NULL, NULL)", "UPDATE accounts SET spent = -1"):
        with pytest.raises(Conflict), store.write() as connection:
            connection.execute(text(broken))
    store.close()


def test_newer_database_is_refused(store: Store) -> None:
    upgrade(store)
    with store.write() as connection:
        connection.execute(text("INSERT INTO schema_migrations VALUES ('m9999_future')"))
    with pytest.raises(QuicksilverError, match="newer"):
        require_current(store)
    store.close()


def test_migration_that_fails_leaves_no_trace(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def m0002_breaks(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half (a TEXT)"))
        raise RuntimeError

    upgrade(store)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, m0002_breaks))
    with pytest.raises(RuntimeError):
        upgrade(store)
    with store.read() as connection:
        assert not inspect(connection).has_table("half")
    monkeypatch.undo()
    require_current(store)
    store.close()
