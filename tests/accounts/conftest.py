"""Fixtures for accounts. Every test that uses `url` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Entry
from quicksilver.accounts.identity import OPERATOR, Identity, Scope
from quicksilver.accounts.ledger import Ledger, Outcome
from quicksilver.accounts.migrations import upgrade
from quicksilver.accounts.records import KeyDraft, Limits, Price
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.accounts.store import Store
from tests.accounts.postgres import find_binaries, running_postgres

_numbers = itertools.count()
# A Friday morning of 2027, in the middle of a minute, hour, day and month.
START = 1_800_000_000.0

RIGHTS = frozenset({Scope.INFERENCE, Scope.USAGE, Scope.KEYS})


@dataclass
class FakeClock:
    now: float = START

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Customer:
    """An organisation with one project and one key."""

    org_id: str
    project_id: str
    key_id: str
    secret: str
    identity: Identity


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server programs are not installed")
    with running_postgres(binaries, "-c fsync=off") as url:
        yield url


def run_sql(server: str, *statements: str) -> None:
    engine = create_engine(server.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def in_schema(server: str, name: str) -> str:
    return f"{server}&options=-csearch_path%3D{name}"


@pytest.fixture
def empty_postgres_url(postgres_server: str) -> str:
    """A schema without tables."""
    name = f"empty{next(_numbers)}"
    run_sql(postgres_server, f"CREATE SCHEMA {name}")
    return in_schema(postgres_server, name)


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> str:
    run_sql(postgres_server, "CREATE SCHEMA books")
    store = Store(in_schema(postgres_server, "books"))
    upgrade(store)
    store.close()
    return in_schema(postgres_server, "books")


@pytest.fixture
def postgres_url(migrated_postgres: str) -> str:
    """Tables without rows: emptying them is much faster than making them."""
    names = ("ledger", "usage", "replies", "secrets", "api_keys", "users", "grants", "accounts")
    others = ("prices", "rate_buckets", "owners", "settings")
    run_sql(migrated_postgres, *(f"DELETE FROM {name}" for name in (*names, *others)))
    return migrated_postgres


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/books.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database in which nothing has been made yet."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "empty_postgres_url"))


@pytest.fixture
def config(tmp_path: Path) -> AccountsConfig:
    """Short waits, and prices at which a token costs one micro-credit, so that sums can be read."""
    return AccountsConfig(
        pepper_path=tmp_path / "pepper",
        default_price=Price(10, 1, 100),
        key_limits=Limits(),
        auth_cache_s=0.0,
        lock_wait_s=0.3,
        heartbeat_s=0.02,
        patience=3,
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def admin(url: str, config: AccountsConfig, clock: FakeClock) -> Iterator[AdminService]:
    admin = open_admin(url, config, clock)
    yield admin
    admin.store.close()


@pytest.fixture
def customer(admin: AdminService) -> Customer:
    return make_customer(admin)


@pytest.fixture
def books(config: AccountsConfig, clock: FakeClock) -> Ledger:
    return Ledger("proc_a", config.default_price, config.reply_kept_s, clock)


def make_customer(admin: AdminService, credits: int = 1, draft: KeyDraft | None = None) -> Customer:
    """`credits` whole credits; at the test prices an input token costs 10, a cached one 1, an output token 100."""
    org = admin.organizations.create_org(OPERATOR, "acme", credits)
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    draft = replace(draft or KeyDraft("key", scopes=RIGHTS), project_id=project.id)
    key = admin.keys.create_key(OPERATOR, draft)
    identity = Identity(key.id, f"{project.path}/{key.id}", draft.scopes, draft.models, draft.user_id, draft.expires_at)
    return Customer(org.id, project.id, key.id, key.secret, identity)


def apply(admin: AdminService, books: Ledger, *entries: Entry) -> list[Outcome]:
    with admin.store.write() as connection:
        return books.apply(connection, entries)
