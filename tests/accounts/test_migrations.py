"""The schema's history: run once, together with its record, and equal to what queries expect."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, inspect, text

from quicksilver.accounts import migrations
from quicksilver.accounts.migrations import require_current, upgrade
from quicksilver.accounts.schema import TABLES
from quicksilver.accounts.store import Store
from quicksilver.errors import QuicksilverError


@pytest.fixture
def store(empty_url: str) -> Store:
    return Store(empty_url)


def test_upgrade_runs_each_migration_once(store: Store) -> None:
    with pytest.raises(QuicksilverError, match="db upgrade"):
        require_current(store)
    assert upgrade(store) == ["m0001_books"]
    assert upgrade(store) == []
    require_current(store)
    store.close()


def test_migrated_tables_are_those_that_queries_name(store: Store) -> None:
    upgrade(store)
    with store.read() as connection:
        look = inspect(connection)
        found = {table.name: {column["name"] for column in look.get_columns(table.name)} for table in TABLES}
        extra = set(look.get_table_names()) - set(found)
    assert found == {table.name: set(table.c.keys()) for table in TABLES}
    assert extra == {"schema_migrations"}
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
