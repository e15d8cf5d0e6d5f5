"""Database access for SQLite and PostgreSQL: transactions, upserts, and translated errors.

Errors are reported without SQL, parameters or row contents. On SQLite a write transaction takes the write lock when it
begins, so it cannot fail later because of another writer.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, TableClause, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError

from quicksilver.errors import Conflict, InvalidRequest, LedgerUnavailable, QuicksilverError

_log = logging.getLogger(__name__)
_FSYNC_FAILED = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class Store:
    """A database. `url` is `sqlite:///file` or `postgresql://…`."""

    def __init__(self, url: str, lock_wait_s: float = 4.0) -> None:
        self.url = _parse(url)
        # True once an fsync failed: the state of the disk is unknown, so nothing is written until a restart.
        self.is_broken = False
        if self.is_sqlite:
            self._writes, self._reads = _open_sqlite(self.url, lock_wait_s), _open_sqlite(self.url, lock_wait_s)
            self._snapshots = self._reads.execution_options()
            event.listen(self._writes, "begin", _begin_immediate)
            event.listen(self._snapshots, "begin", _begin)
        else:
            self._writes = _open_postgres(self.url, lock_wait_s)
            self._reads = self._writes.execution_options(isolation_level="AUTOCOMMIT")
            self._snapshots = self._writes.execution_options(isolation_level="REPEATABLE READ")

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction: all of it is on disk when the block ends, or none of it."""
        if self.is_broken:
            raise LedgerUnavailable("an fsync of the ledger failed; check the disk and restart", retry_after_s=60.0)
        with self._translated(), self._writes.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection without a transaction: each statement reads what is committed."""
        with self._translated(), self._reads.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A read transaction over one snapshot. It may take long and blocks no writer."""
        with self._translated(), self._snapshots.begin() as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            yield connection

    def close(self) -> None:
        self._writes.dispose()
        self._reads.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise self._reported(error) from None

    def _reported(self, error: SQLAlchemyError) -> QuicksilverError:
        cause = error.orig if isinstance(error, DBAPIError) else error
        code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
        _log.warning("database error: %s %s", type(cause).__name__, code or "")
        if getattr(cause, "sqlite_errorcode", None) in _FSYNC_FAILED:
            self.is_broken = True
        if isinstance(error, IntegrityError):
            return Conflict("it exists already, or conflicts with stored data")
        if isinstance(error, DataError):
            return InvalidRequest("a value cannot be stored")
        return LedgerUnavailable("the ledger cannot be written now, so paid requests are refused; try again")


def upsert(connection: Connection, table: TableClause) -> Any:
    """INSERT with ON CONFLICT, in the dialect of this connection."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)


@cache
def replacing(dialect: str, table: TableClause, key: tuple[str, ...], replaced: tuple[str, ...]) -> Any:
    """INSERT that replaces the columns `replaced` of rows with the same `key`. Cached, since it is slow to build."""
    insert = (sqlite if dialect == "sqlite" else postgresql).insert(table)
    return insert.on_conflict_do_update(index_elements=key, set_={name: insert.excluded[name] for name in replaced})


@cache
def adding(dialect: str, table: TableClause, key: tuple[str, ...], summed: tuple[str, ...]) -> Any:
    """INSERT that adds to the columns `summed` of rows with the same `key`."""
    insert = (sqlite if dialect == "sqlite" else postgresql).insert(table)
    sums = {name: table.c[name] + insert.excluded[name] for name in summed}
    return insert.on_conflict_do_update(index_elements=key, set_=sums)


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except ArgumentError:
        raise InvalidRequest("a database URL looks like sqlite:///file or postgresql://user@host/name") from None
    if backend in {"postgresql", "postgres"}:
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite" or not url.database or url.database == ":memory:":
        raise InvalidRequest("accounts need a SQLite file or a PostgreSQL database")
    return url


def _open_sqlite(url: URL, lock_wait_s: float) -> Engine:
    path = Path(str(url.database))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Created with mode 0600: the WAL and shared-memory files copy the mode of this file.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    engine = create_engine(url, hide_parameters=True, connect_args={"timeout": lock_wait_s})
    event.listen(engine, "connect", _configure_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _open_postgres(url: URL, lock_wait_s: float) -> Engine:
    wait_ms = round(lock_wait_s * 1000)
    given = url.query.get("options", "")
    options = f"{given} -c lock_timeout={wait_ms} -c statement_timeout={wait_ms} -c synchronous_commit=on"
    connect_args = {"connect_timeout": max(1, round(lock_wait_s)), "options": options.strip()}
    return create_engine(
        url, hide_parameters=True, pool_pre_ping=True, use_native_hstore=False, connect_args=connect_args
    )
