"""Numbered schema migrations. Each runs once, in order, in the transaction that records it.

Never edit a migration that has shipped; add the next one. The SQL runs on SQLite and on PostgreSQL. The first migration
names the table of accounts `purses`; the second one renames it. `entries.LedgerRow` describes the ledger's columns.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect, text

from quicksilver.accounts.store import Store
from quicksilver.errors import QuicksilverError

_V1 = """
CREATE TABLE purses (
  id TEXT PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('org', 'project', 'key')),
  path TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  disabled_at BIGINT,
  allowance BIGINT CHECK (allowance >= 0),
  spent BIGINT NOT NULL DEFAULT 0 CHECK (spent >= 0),
  reserved BIGINT NOT NULL DEFAULT 0 CHECK (reserved >= 0),
  in_flight BIGINT NOT NULL DEFAULT 0 CHECK (in_flight >= 0),
  period TEXT CHECK (period IN ('day', 'month')),
  period_at BIGINT NOT NULL DEFAULT 0,
  spent_before BIGINT NOT NULL DEFAULT 0,
  max_requests BIGINT, max_input BIGINT, max_output BIGINT, max_in_flight BIGINT,
  CHECK (kind <> 'org' OR allowance IS NULL OR spent + reserved <= allowance)
);
CREATE TABLE users (
  id TEXT PRIMARY KEY,
  org_id TEXT NOT NULL REFERENCES purses (id),
  email TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  disabled_at BIGINT,
  UNIQUE (org_id, email)
);
CREATE TABLE api_keys (
  id TEXT PRIMARY KEY REFERENCES purses (id),
  user_id TEXT REFERENCES users (id),
  scopes TEXT NOT NULL,
  models TEXT,
  expires_at BIGINT
);
CREATE TABLE secrets (
  digest TEXT PRIMARY KEY,
  key_id TEXT NOT NULL REFERENCES api_keys (id),
  display TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT
);
CREATE INDEX secrets_of_key ON secrets (key_id);
CREATE TABLE grants (
  seq {serial},
  org_id TEXT NOT NULL REFERENCES purses (id),
  amount BIGINT NOT NULL CHECK (amount > 0),
  reference TEXT NOT NULL UNIQUE,
  granted_at BIGINT NOT NULL
);
CREATE TABLE prices (
  model TEXT PRIMARY KEY,
  input BIGINT NOT NULL, cached BIGINT NOT NULL, output BIGINT NOT NULL
);
CREATE TABLE ledger (
  seq {serial},
  request_id TEXT NOT NULL UNIQUE,
  path TEXT NOT NULL,
  key_id TEXT NOT NULL REFERENCES api_keys (id),
  model TEXT NOT NULL,
  owner TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'settled', 'released')),
  created_at BIGINT NOT NULL,
  closed_at BIGINT,
  closed_by TEXT CHECK (closed_by IN ('request', 'sweep')),
  max_input BIGINT NOT NULL, max_output BIGINT NOT NULL,
  input_price BIGINT NOT NULL, cached_price BIGINT NOT NULL, output_price BIGINT NOT NULL,
  reserved BIGINT NOT NULL CHECK (reserved >= 0),
  is_rated BIGINT NOT NULL,
  has_claim BIGINT NOT NULL,
  wire_tokens BIGINT, wire_cached BIGINT,
  input_tokens BIGINT NOT NULL DEFAULT 0,
  cached_tokens BIGINT NOT NULL DEFAULT 0,
  output_tokens BIGINT NOT NULL DEFAULT 0,
  cost BIGINT NOT NULL DEFAULT 0 CHECK (cost BETWEEN 0 AND reserved),
  CHECK ((state = 'open') = (closed_at IS NULL)),
  CHECK (state = 'settled' OR cost = 0)
);
CREATE INDEX ledger_open ON ledger (owner) WHERE state = 'open';
CREATE TABLE usage (
  key_id TEXT NOT NULL REFERENCES api_keys (id),
  model TEXT NOT NULL,
  hour BIGINT NOT NULL,
  requests BIGINT NOT NULL,
  input_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL,
  cost BIGINT NOT NULL,
  PRIMARY KEY (key_id, model, hour)
);
CREATE INDEX usage_by_hour ON usage (hour);
CREATE TABLE rate_buckets (
  purse_id TEXT NOT NULL,
  second BIGINT NOT NULL,
  requests BIGINT NOT NULL, input_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL,
  PRIMARY KEY (purse_id, second)
);
CREATE TABLE replies (
  key_id TEXT NOT NULL REFERENCES api_keys (id),
  idempotency_key TEXT NOT NULL,
  body_digest TEXT NOT NULL,
  request_id TEXT NOT NULL UNIQUE,
  created_at BIGINT NOT NULL,
  status BIGINT,
  body {blob},
  PRIMARY KEY (key_id, idempotency_key)
);
CREATE TABLE owners (id TEXT PRIMARY KEY, beat BIGINT NOT NULL);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)
"""

_TYPES = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "blob": "BLOB"},
    "postgresql": {"serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "blob": "BYTEA"},
}


# Foreign keys, indexes and checks follow a renamed table on both databases.
_V2 = """
ALTER TABLE purses RENAME TO accounts;
ALTER TABLE rate_buckets RENAME COLUMN purse_id TO account_id;
ALTER TABLE owners RENAME COLUMN beat TO heartbeat
"""


def m0001_books(connection: Connection) -> None:
    """Accounts, keys, the ledger and everything they need."""
    for statement in _V1.format(**_TYPES[connection.dialect.name]).split(";"):
        connection.execute(text(statement))


def m0002_accounts(connection: Connection) -> None:
    """Rename `purses` to `accounts`. A process of the old version that still runs fails closed: it serves nothing paid,
    and its open reservations are closed by a process of the new version."""
    for statement in _V2.split(";"):
        connection.execute(text(statement))


# Responses, conversations, files and batches. `owner` is a project; `parent` is the object that contains this one.
_V3 = """
CREATE TABLE objects (
  seq {serial},
  owner TEXT NOT NULL,
  kind TEXT NOT NULL,
  id TEXT NOT NULL,
  parent TEXT NOT NULL DEFAULT '',
  created_at BIGINT NOT NULL,
  size BIGINT NOT NULL,
  is_open BIGINT NOT NULL DEFAULT 0,
  leased_by TEXT NOT NULL DEFAULT '',
  leased_until BIGINT NOT NULL DEFAULT 0,
  body {blob} NOT NULL,
  UNIQUE (owner, kind, id)
);
CREATE INDEX objects_in_order ON objects (owner, kind, parent, seq);
CREATE INDEX objects_open ON objects (kind, seq) WHERE is_open = 1
"""


def m0003_objects(connection: Connection) -> None:
    """Objects that requests store; also the schema of a server's own file where there are no accounts."""
    for statement in _V3.format(**_TYPES[connection.dialect.name]).split(";"):
        connection.execute(text(statement))


def m0004_may_leave(connection: Connection) -> None:
    """Whether the prompts of a project may be sent to upstreams of hybrid routing."""
    connection.execute(text("ALTER TABLE accounts ADD COLUMN may_leave BIGINT NOT NULL DEFAULT 0"))


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    m0001_books,
    m0002_accounts,
    m0003_objects,
    m0004_may_leave,
)


def upgrade(store: Store) -> list[str]:
    """Runs the migrations that have not run and returns their names. Safe when several processes start at once."""
    with store.write() as connection:
        _lock(connection)
        connection.execute(text("CREATE TABLE IF NOT EXISTS schema_migrations (name TEXT PRIMARY KEY)"))
        return [_run(connection, step) for step in _waiting(connection)]


def require_current(store: Store) -> None:
    """Raises unless the database has exactly the migrations of this version."""
    with store.read() as connection:
        has_table = inspect(connection).has_table("schema_migrations")
        done = _done(connection) if has_table else set()
    known = {step.__name__ for step in MIGRATIONS}
    if done - known:
        raise QuicksilverError(
            "the database schema is newer than this program; upgrade the program", code="schema_ahead"
        )
    if known - done:
        raise QuicksilverError(
            "the database schema is older than this program; run `quicksilver db upgrade`", code="schema_behind"
        )


def _lock(connection: Connection) -> None:
    # A write transaction of SQLite excludes all others; PostgreSQL needs an explicit lock.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(7163051)"))


def _done(connection: Connection) -> set[str]:
    return set(connection.execute(text("SELECT name FROM schema_migrations")).scalars())


def _waiting(connection: Connection) -> list[Callable[[Connection], None]]:
    done = _done(connection)
    return [step for step in MIGRATIONS if step.__name__ not in done]


def _run(connection: Connection, step: Callable[[Connection], None]) -> str:
    step(connection)
    connection.execute(text("INSERT INTO schema_migrations (name) VALUES (:name)"), {"name": step.__name__})
    return step.__name__
