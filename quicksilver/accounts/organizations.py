"""Organisations, projects, users, credits, budgets, limits and prices: what an operator or admin key arranges.

Every method is one transaction and takes `by`, the identity that asks. Objects that `by` does not own are NotFound,
exactly like objects that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from quicksilver.accounts.budgets import limits_of
from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import Identity, Scope
from quicksilver.accounts.keys import make_id
from quicksilver.accounts.records import MAX_AMOUNT, MICRO, Limits, Price, period_start
from quicksilver.accounts.schema import api_keys, grants, prices, purses, users
from quicksilver.accounts.store import Store, upsert
from quicksilver.accounts.views import PurseRecord, UserRecord
from quicksilver.errors import InvalidRequest, NotFound

MAX_NAME_LEN = 128


class Directory:
    """The arrangements, over a store. Synchronous; a server calls it through `Accounts.admin`."""

    def __init__(self, store: Store, config: AccountsConfig, clock: Callable[[], float]) -> None:
        self.store = store
        self.config = config
        self.clock = clock

    def create_org(self, by: Identity, name: str, credits: int | None = None) -> PurseRecord:
        """An organisation with a project named `default`. `credits` None: what sign-up gives."""
        by.require(Scope.ADMIN)
        given = self.config.signup_credits if credits is None else credits
        with self.store.write() as connection:
            org_id = self.insert_purse(connection, "org", "", name, 0)
            self.insert_purse(connection, "project", org_id, "default", None)
            if given:
                self._grant(connection, org_id, given * MICRO, f"sign-up {org_id}")
            return find_purse(connection, by, org_id, "org")

    def create_project(self, by: Identity, org_id: str, name: str) -> PurseRecord:
        by.require(Scope.ADMIN)
        with self.store.write() as connection:
            find_purse(connection, by, org_id, "org")
            return find_purse(connection, by, self.insert_purse(connection, "project", org_id, name, None), "project")

    def create_user(self, by: Identity, org_id: str, email: str) -> UserRecord:
        by.require(Scope.ADMIN)
        user = UserRecord(make_id("user"), org_id, clean_name(email, "email"), int(self.clock()), False)
        fields = {name: value for name, value in asdict(user).items() if name != "is_disabled"}
        with self.store.write() as connection:
            find_purse(connection, by, org_id, "org")
            connection.execute(insert(users).values(fields))
        return user

    def remove_user(self, by: Identity, user_id: str) -> None:
        """Disable a user and every key of theirs, those minted from these included."""
        by.require(Scope.ADMIN)
        now = int(self.clock())
        with self.store.write() as connection:
            change = update(users).where(users.c.id == user_id).values(disabled_at=now)
            if not connection.execute(change).rowcount:
                raise NotFound("no such user")
            theirs = select(api_keys.c.id).where(api_keys.c.user_id == user_id)
            connection.execute(update(purses).where(purses.c.id.in_(theirs)).values(disabled_at=now))

    def list_users(self, by: Identity, org_id: str = "") -> list[UserRecord]:
        """People of one organisation, or of all."""
        by.require(Scope.ADMIN)
        query = select(users).order_by(users.c.org_id, users.c.email, users.c.id)
        with self.store.read() as connection:
            rows = connection.execute(query.where(users.c.org_id == org_id) if org_id else query).all()
        return [user_of(row) for row in rows]

    def get_user(self, by: Identity, user_id: str) -> UserRecord:
        by.require(Scope.ADMIN)
        with self.store.read() as connection:
            found = find_users(connection, {user_id}).get(user_id)
        if found is None:
            raise NotFound("no such user")
        return found

    def list_purses(self, by: Identity, kind: str, within: str = "") -> list[PurseRecord]:
        """Purses of a kind that `by` may see, below the purse whose id is `within` if one is named."""
        query = select(purses).where(purses.c.kind == kind).order_by(purses.c.created_at, purses.c.id)
        with self.store.read() as connection:
            if within:
                above = find_purse(connection, by, within)
                query = query.where(purses.c.path.startswith(above.path + "/", autoescape=True))
            rows = connection.execute(query).all()
        return [record_of(row) for row in rows if by.sees(row.path)]

    def get_purse(self, by: Identity, purse_id: str, kind: str | None = None) -> PurseRecord:
        with self.store.read() as connection:
            return find_purse(connection, by, purse_id, kind)

    def list_path(self, by: Identity) -> list[PurseRecord]:
        """The purses that pay for what `by` does: its organisation, its project, and the keys down to itself."""
        with self.store.read() as connection:
            rows = connection.execute(select(purses).where(purses.c.id.in_(by.purse_ids))).all()
        return sorted((record_of(row) for row in rows), key=lambda purse: len(purse.path))

    def rename(self, by: Identity, purse_id: str, name: str) -> None:
        by.require(Scope.ADMIN)
        self._set(by, purse_id, {"name": clean_name(name, "name")})

    def disable(self, by: Identity, purse_id: str) -> None:
        """Stop an organisation, project or key, and all below it, from its next request on. A key is revoked so."""
        by.require(Scope.KEYS)
        self._set(by, purse_id, {"disabled_at": int(self.clock())})

    def enable(self, by: Identity, purse_id: str) -> None:
        by.require(Scope.ADMIN)
        self._set(by, purse_id, {"disabled_at": None})

    def set_budget(self, by: Identity, purse_id: str, amount: int | None, period: str | None = None) -> PurseRecord:
        """Micro-credits a project or key may spend, in all or per UTC `day` or `month`. Counting starts now."""
        by.require(Scope.ADMIN)
        if period not in (None, "day", "month") or not 0 <= (amount or 0) <= MAX_AMOUNT:
            raise InvalidRequest("a budget is an amount, in all or per day or month", param="budget")
        with self.store.write() as connection:
            purse = find_purse(connection, by, purse_id)
            if purse.kind == "org":
                raise InvalidRequest("an organisation has credits, not a budget; add credits", param="budget")
            since = {"period_at": period_start(period, self.clock()), "spent_before": purses.c.spent if period else 0}
            change = update(purses).where(purses.c.id == purse_id)
            connection.execute(change.values(allowance=amount, period=period, **since))
            return find_purse(connection, by, purse_id)

    def set_limits(self, by: Identity, purse_id: str, limits: Limits) -> None:
        by.require(Scope.ADMIN)
        self._set(by, purse_id, limit_columns(limits))

    def add_credits(self, by: Identity, org_id: str, amount: int, reference: str) -> PurseRecord:
        """Add micro-credits. The same `reference` is a Conflict, so a payment told twice counts once."""
        by.require(Scope.ADMIN)
        with self.store.write() as connection:
            if find_purse(connection, by, org_id, "org").allowance is None:
                raise InvalidRequest("this organisation has no bound on its credits", param="org_id")
            self._grant(connection, org_id, amount, clean_name(reference, "reference"))
            return find_purse(connection, by, org_id, "org")

    def lift_credit_bound(self, by: Identity, org_id: str) -> PurseRecord:
        """Let an organisation spend without end; it is metered all the same."""
        by.require(Scope.ADMIN)
        with self.store.write() as connection:
            find_purse(connection, by, org_id, "org")
            connection.execute(update(purses).where(purses.c.id == org_id).values(allowance=None))
            return find_purse(connection, by, org_id, "org")

    def set_price(self, by: Identity, model: str, price: Price) -> None:
        """Price of a model from the next reservation on; open ones keep theirs."""
        by.require(Scope.ADMIN)
        with self.store.write() as connection:
            change = upsert(connection, prices).values(model=clean_name(model, "model"), **asdict(price))
            connection.execute(change.on_conflict_do_update(index_elements=["model"], set_=asdict(price)))

    def list_prices(self) -> dict[str, Price]:
        with self.store.read() as connection:
            rows = connection.execute(select(prices).order_by(prices.c.model)).all()
        return {row.model: Price(row.input, row.cached, row.output) for row in rows}

    def insert_purse(self, connection: Connection, kind: str, above: str, name: str, allowance: int | None) -> str:
        """A new purse below the path `above`; returns its id."""
        purse_id = make_id({"org": "org", "project": "proj", "key": "key"}[kind])
        path = f"{above}/{purse_id}" if above else purse_id
        row = {"id": purse_id, "kind": kind, "path": path, "name": clean_name(name, "name"), "allowance": allowance}
        connection.execute(insert(purses).values(created_at=int(self.clock()), **row))
        return purse_id

    def _grant(self, connection: Connection, org_id: str, amount: int, reference: str) -> None:
        if not 0 < amount <= MAX_AMOUNT:
            raise InvalidRequest("credits are a positive whole number", param="amount")
        row = {"org_id": org_id, "amount": amount, "reference": reference, "granted_at": int(self.clock())}
        connection.execute(insert(grants).values(row))
        total = connection.execute(select(func.sum(grants.c.amount)).where(grants.c.org_id == org_id)).scalar_one()
        if total > MAX_AMOUNT:
            raise InvalidRequest("that is more than the books can hold", param="amount")
        connection.execute(update(purses).where(purses.c.id == org_id).values(allowance=int(total)))

    def _set(self, by: Identity, purse_id: str, values: dict[str, Any]) -> None:
        with self.store.write() as connection:
            find_purse(connection, by, purse_id)
            connection.execute(update(purses).where(purses.c.id == purse_id).values(values))


def limit_columns(limits: Limits) -> dict[str, int | None]:
    return {
        "max_requests": limits.requests,
        "max_input": limits.input_tokens,
        "max_output": limits.output_tokens,
        "max_in_flight": limits.concurrency,
    }


def clean_name(text: str, param: str) -> str:
    """A name fit for lists and logs: printable, not blank, bounded."""
    if not (text.strip() and text.isprintable() and len(text) <= MAX_NAME_LEN):
        raise InvalidRequest(f"{param} needs 1 to {MAX_NAME_LEN} printable characters", param=param)
    return text


def find_purse(connection: Connection, by: Identity, purse_id: str, kind: str | None = None) -> PurseRecord:
    row = connection.execute(select(purses).where(purses.c.id == purse_id)).one_or_none()
    if row is None or not by.sees(row.path) or kind not in (None, row.kind):
        raise NotFound("no such organisation, project or key")
    return record_of(row)


def find_users(connection: Connection, user_ids: Collection[str]) -> dict[str, UserRecord]:
    rows = connection.execute(select(users).where(users.c.id.in_(user_ids))).all() if user_ids else []
    return {row.id: user_of(row) for row in rows}


def user_of(row: Any) -> UserRecord:
    return UserRecord(row.id, row.org_id, row.email, row.created_at, row.disabled_at is not None)


def record_of(row: Any) -> PurseRecord:
    return PurseRecord(
        id=row.id,
        kind=row.kind,
        path=row.path,
        name=row.name,
        created_at=row.created_at,
        disabled_at=row.disabled_at,
        allowance=row.allowance,
        spent=row.spent,
        reserved=row.reserved,
        in_flight=row.in_flight,
        limits=limits_of(row),
        period=row.period,
        period_at=row.period_at,
        spent_before=row.spent_before,
    )
