"""The `keys`, `orgs`, `usage` and `db` commands as plain functions: open the books, do one thing, return plain data.

Nothing is printed and nothing is parsed here. Amounts come back in credits as exact text, times as unix seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import backup, check
from quicksilver.accounts.migrations import upgrade
from quicksilver.accounts.records import MICRO, Price, in_credits
from quicksilver.accounts.service import Desk, open_desk
from quicksilver.accounts.store import Store
from quicksilver.accounts.views import KeyDraft, KeyRecord, NewKey, PurseRecord, UsageQuery

Row = dict[str, str | int | None]
DAY_S = 86_400


def db_upgrade(url: str, config: AccountsConfig) -> list[str]:
    """Names of the migrations that ran."""
    with _store(url, config) as store:
        return upgrade(store)


def db_check(url: str, config: AccountsConfig) -> list[str]:
    """What is wrong with the books; empty when nothing is."""
    with _store(url, config) as store:
        return check(store)


def db_backup(url: str, config: AccountsConfig, target: Path) -> None:
    with _store(url, config) as store:
        backup(store, target)


def orgs_list(url: str, config: AccountsConfig) -> list[Row]:
    with _desk(url, config) as desk:
        return [_org_row(org) for org in desk.directory.list_purses(OPERATOR, "org")]


def orgs_create(url: str, config: AccountsConfig, name: str, credits: int | None = None) -> Row:
    """A new organisation and its default project. `credits` None: what sign-up gives."""
    with _desk(url, config) as desk:
        org = desk.directory.create_org(OPERATOR, name, credits)
        project = desk.directory.list_purses(OPERATOR, "project", org.id)[0]
        return {**_org_row(org), "project_id": project.id}


def orgs_credit(url: str, config: AccountsConfig, org_id: str, credits: int, reference: str) -> Row:
    with _desk(url, config) as desk:
        return _org_row(desk.directory.add_credits(OPERATOR, org_id, credits * MICRO, reference))


def keys_list(url: str, config: AccountsConfig, within: str = "") -> list[Row]:
    with _desk(url, config) as desk:
        return [_key_row(key) for key in desk.mint.list_keys(OPERATOR, within)]


def keys_create(url: str, config: AccountsConfig, draft: KeyDraft) -> NewKey:
    """The caller prints the secret once; it cannot be had again."""
    with _desk(url, config) as desk:
        return desk.mint.create_key(OPERATOR, draft)


def keys_rotate(url: str, config: AccountsConfig, key_id: str, overlap_s: int = 0) -> NewKey:
    with _desk(url, config) as desk:
        return desk.mint.rotate_key(OPERATOR, key_id, overlap_s)


def keys_revoke(url: str, config: AccountsConfig, key_id: str) -> None:
    with _desk(url, config) as desk:
        desk.directory.disable(OPERATOR, desk.directory.get_purse(OPERATOR, key_id, "key").id)


def prices_list(url: str, config: AccountsConfig) -> list[Row]:
    """Of models that have a price of their own, and under `*` of all others."""
    with _desk(url, config) as desk:
        return [_price_row(*one) for one in {**desk.directory.list_prices(), "*": config.default_price}.items()]


def prices_set(url: str, config: AccountsConfig, model: str, price: Price) -> list[Row]:
    with _desk(url, config) as desk:
        desk.directory.set_price(OPERATOR, model, price)
    return prices_list(url, config)


def usage_table(url: str, config: AccountsConfig, num_days: int, group_by: tuple[str, ...]) -> list[Row]:
    """One row a day and group over the last `num_days` days, today included; days without usage are left out."""
    end = (int(time.time()) // DAY_S + 1) * DAY_S
    query = UsageQuery(end - num_days * DAY_S, end, "1d", group_by)
    with _desk(url, config) as desk:
        buckets = desk.usage(OPERATOR, query)
    return [
        {"day": time.strftime("%Y-%m-%d", time.gmtime(bucket.start)), **asdict(line), "cost": in_credits(line.cost)}
        for bucket in buckets
        for line in bucket.lines
    ]


def _org_row(org: PurseRecord) -> Row:
    return {
        "id": org.id,
        "name": org.name,
        "state": "disabled" if org.is_disabled else "active",
        "spent": in_credits(org.spent),
        "balance": "unbounded" if org.balance is None else in_credits(org.balance),
    }


def _price_row(model: str, price: Price) -> Row:
    return {
        "model": model,
        "input": in_credits(price.input),
        "cached": in_credits(price.cached),
        "output": in_credits(price.output),
    }


def _key_row(key: KeyRecord) -> Row:
    return {
        "id": key.purse.id,
        "name": key.purse.name,
        "key": " ".join(key.displays),
        "state": "revoked" if key.purse.is_disabled else "active",
        "scopes": " ".join(sorted(key.scopes)),
        "models": "all" if key.models is None else " ".join(sorted(key.models)),
        "expires_at": key.expires_at,
        "spent": in_credits(key.purse.spent),
        "budget": None if key.purse.allowance is None else in_credits(key.purse.allowance),
    }


@contextmanager
def _store(url: str, config: AccountsConfig) -> Iterator[Store]:
    store = Store(url, config.lock_wait_s)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _desk(url: str, config: AccountsConfig) -> Iterator[Desk]:
    desk = open_desk(url, config)
    try:
        yield desk
    finally:
        desk.store.close()
