"""Fixtures of the accounts tests, for commands that use a database."""

from tests.accounts.conftest import (  # noqa: F401
    config,
    empty_postgres_url,
    empty_url,
    migrated_postgres,
    postgres_server,
    postgres_url,
    sqlite_url,
    url,
)
