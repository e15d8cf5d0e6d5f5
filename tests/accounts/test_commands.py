"""What the command line calls: plain data in, plain data out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from quicksilver.accounts import commands
from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Close, How, Reserve
from quicksilver.accounts.identity import ALL_SCOPES, Identity
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.records import MICRO, Order, Price, from_credits
from quicksilver.accounts.service import open_desk
from quicksilver.accounts.views import KeyDraft
from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest
from tests.accounts.conftest import apply


def test_database_commands(empty_url: str, config: AccountsConfig, tmp_path: Path) -> None:
    assert commands.db_upgrade(empty_url, config) == ["m0001_books"]
    assert commands.db_upgrade(empty_url, config) == []
    assert commands.db_check(empty_url, config) == []


def test_backup_command(sqlite_url: str, config: AccountsConfig, tmp_path: Path) -> None:
    commands.db_upgrade(sqlite_url, config)
    commands.db_backup(sqlite_url, config, tmp_path / "copy.db")
    assert commands.db_check(f"sqlite:///{tmp_path}/copy.db", config) == []


def test_organisations_and_keys(url: str, config: AccountsConfig) -> None:
    org = commands.orgs_create(url, config, "acme", 5)
    assert org["balance"] == "5"
    assert commands.orgs_credit(url, config, str(org["id"]), 7, "gift")["balance"] == "12"
    assert [one["name"] for one in commands.orgs_list(url, config)] == ["acme"]
    key = commands.keys_create(url, config, KeyDraft("ci", str(org["project_id"]), budget=MICRO // 2))
    new = commands.keys_rotate(url, config, key.id)
    (row,) = commands.keys_list(url, config)
    assert row == {
        "id": key.id, "name": "ci", "key": new.secret[:9] + "…", "state": "active", "scopes": "inference usage",
        "models": "all", "expires_at": None, "spent": "0", "budget": "0.5",
    }  # fmt: skip
    commands.keys_revoke(url, config, key.id)
    assert commands.keys_list(url, config, str(org["id"]))[0]["state"] == "revoked"


def test_usage_table(url: str, config: AccountsConfig) -> None:
    org = commands.orgs_create(url, config, "acme", 5)
    key = commands.keys_create(url, config, KeyDraft("ci", str(org["project_id"])))
    assert commands.usage_table(url, config, 7, ("key", "model")) == []
    desk = open_desk(url, config)
    books = Ledger("p", config.default_price, config.reply_kept_s, time.time)
    who = Identity(key.id, f"{org['id']}/{org['project_id']}/{key.id}", ALL_SCOPES)
    apply(desk, books, Reserve(who, Order("r", "nano", 5, 5)), Close("r", How.SETTLE, Usage(5, 0, 5)))
    desk.store.close()
    (row,) = commands.usage_table(url, config, 7, ("key", "model"))
    assert (row["key_id"], row["model"], row["requests"], row["cost"]) == (key.id, "nano", 1, "0.00055")


def test_prices(url: str, config: AccountsConfig) -> None:
    assert [row["model"] for row in commands.prices_list(url, config)] == ["*"]
    assert commands.prices_set(url, config, "nano", Price(MICRO, 0, 2 * MICRO))[0] == {
        "model": "nano", "input": "1", "cached": "0", "output": "2",
    }  # fmt: skip


def test_amounts_are_read_exactly() -> None:
    assert [from_credits(text, "budget") for text in ("0", "1", "0.000001", "12.5", "999999999999")] == [
        0, MICRO, 1, 12_500_000, 999_999_999_999 * MICRO,
    ]  # fmt: skip
    for odd in ("", "-1", "1.", ".5", "1e3", "1.0000001", "\uff11", "1 ", "9" * 13):
        with pytest.raises(InvalidRequest):
            from_credits(odd, "budget")


def test_amounts_are_exact_text() -> None:
    assert [commands.in_credits(amount) for amount in (0, 1, MICRO, 10 * MICRO, 12_500_000)] == [
        "0", "0.000001", "1", "10", "12.5",
    ]  # fmt: skip
