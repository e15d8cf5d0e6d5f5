"""Both databases: durability, errors that fail closed, messages without contents."""

from __future__ import annotations

import logging
import sqlite3
import stat
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from quicksilver.accounts.store import Store
from quicksilver.errors import Conflict, InvalidRequest, LedgerUnavailable
from tests.accounts.conftest import run_sql


def make_table(store: Store) -> None:
    with store.write() as connection:
        connection.execute(text("CREATE TABLE notes (name TEXT PRIMARY KEY CHECK (name <> 'bad'))"))


def add(store: Store, name: str) -> None:
    with store.write() as connection:
        connection.execute(text("INSERT INTO notes VALUES (:name)"), {"name": name})


def names(store: Store) -> list[str]:
    with store.read() as connection:
        return list(connection.execute(text("SELECT name FROM notes ORDER BY name")).scalars())


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://root@localhost/x"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        Store(url)


def test_sqlite_is_durable_private_and_checks_references(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/deep/books.db")
    make_table(store)
    with store.read() as connection:
        asked = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        found = [connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in asked]
    assert found == ["wal", 2, 1, 4000]
    assert stat.S_IMODE((tmp_path / "deep" / "books.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "deep" / "books.db-wal").stat().st_mode) == 0o600
    store.close()


def test_postgres_waits_as_long_as_sqlite(empty_postgres_url: str) -> None:
    store = Store(empty_postgres_url, 1.5)
    with store.read() as connection:
        asked = ("lock_timeout", "statement_timeout", "synchronous_commit")
        assert [connection.execute(text(f"SHOW {name}")).scalar_one() for name in asked] == ["1500ms", "1500ms", "on"]
    store.close()


def test_transaction_is_all_or_nothing(empty_url: str) -> None:
    store = Store(empty_url)
    make_table(store)

    def interrupted() -> None:
        with store.write() as connection:
            connection.execute(text("INSERT INTO notes VALUES ('half')"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    add(store, "whole")
    assert names(store) == ["whole"]
    store.close()


def test_constraint_violations_are_conflicts_without_values(empty_url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(empty_url)
    make_table(store)
    add(store, "canary")
    with caplog.at_level(logging.DEBUG), pytest.raises(Conflict) as caught:
        add(store, "canary")
    with pytest.raises(Conflict):
        add(store, "bad")
    assert "canary" not in caplog.text + str(caught.value) + repr(caught.value)
    assert caught.value.__suppress_context__
    store.close()


def test_locked_sqlite_is_unavailable_after_the_wait(sqlite_url: str) -> None:
    store = Store(sqlite_url, 0.05)
    make_table(store)
    other = sqlite3.connect(str(store.url.database), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerUnavailable):
        add(store, "late")
    assert names(store) == []
    other.execute("ROLLBACK")
    other.close()
    add(store, "late")
    assert names(store) == ["late"]
    store.close()


def test_locked_postgres_is_unavailable_after_the_wait(empty_postgres_url: str) -> None:
    store, other = Store(empty_postgres_url, 0.05), Store(empty_postgres_url)
    make_table(store)
    with other.write() as connection:
        connection.execute(text("LOCK TABLE notes IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(LedgerUnavailable):
            add(store, "late")
    add(store, "late")
    assert names(store) == ["late"]
    store.close()
    other.close()


def test_full_sqlite_is_unavailable_and_recovers(sqlite_url: str) -> None:
    store = Store(sqlite_url)
    make_table(store)
    with store.write() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
        connection.execute(text(f"PRAGMA max_page_count={pages}"))
    with pytest.raises(LedgerUnavailable):
        add(store, "x" * 100_000)
    assert names(store) == []
    assert not store.is_broken
    with store.write() as connection:
        connection.execute(text("PRAGMA max_page_count=100000"))
    add(store, "x" * 100_000)
    assert len(names(store)) == 1
    store.close()


def test_lost_postgres_connection_is_unavailable_once(empty_postgres_url: str, postgres_server: str) -> None:
    store = Store(empty_postgres_url)
    make_table(store)

    def lose_connection() -> None:
        with store.write() as connection:
            mine = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            run_sql(postgres_server, f"SELECT pg_terminate_backend({mine})")
            connection.execute(text("INSERT INTO notes VALUES ('lost')"))

    with pytest.raises(LedgerUnavailable):
        lose_connection()
    add(store, "kept")
    assert names(store) == ["kept"]
    store.close()


def test_value_that_cannot_be_stored_is_an_invalid_request(empty_postgres_url: str) -> None:
    store = Store(empty_postgres_url)
    make_table(store)
    with pytest.raises(InvalidRequest):
        add(store, "nul \x00")
    store.close()


def test_failed_fsync_stops_all_writing(sqlite_url: str) -> None:
    store = Store(sqlite_url)
    make_table(store)
    lost = sqlite3.OperationalError("disk I/O error")
    lost.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    lost.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    with pytest.raises(LedgerUnavailable), store.write():
        raise OperationalError("COMMIT", None, lost)
    assert store.is_broken
    with pytest.raises(LedgerUnavailable, match="restart"):
        add(store, "after")
    assert names(store) == []
    store.close()
