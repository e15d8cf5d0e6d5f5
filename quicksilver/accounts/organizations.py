"""Management of organisations, projects, users, credits, budgets, limits and prices, for operators and admin keys.

Every method is one transaction and takes `by`, the identity of the caller. An object that `by` may not see raises
NotFound, the same as an object that does not exist.
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
from quicksilver.accounts.records import MAX_AMOUNT, MICRO, AccountRecord, Limits, Price, UserRecord, period_start
from quicksilver.accounts.schema import accounts, api_keys, grants, prices, users
from quicksilver.accounts.store import Store, upsert
from quicksilver.errors import InvalidRequest, NotFound

MAX_NAME_LEN = 128


class Organizations:
    """Synchronous; a server calls it through `Accounts.admin`."""

    def __init__(self, store: Store, config: AccountsConfig, clock: Callable[[], float]) -> None:
        self.store = store
        self.config = config
        self.clock = clock

    def create_org(self, by: Identity, name: str, credits: int | None = None) -> AccountRecord:
        """Creates an organisation with a project named `default`. `credits` defaults to the sign-up credits."""
        by.require(Scope.ADMIN)
        amount = self.config.signup_credits if credits is None else credits
        with self.store.write() as connection:
            org_id = self.insert_account(connection, "org", "", name, 0)
            limits = limit_columns(self.config.org_limits)
            connection.execute(update(accounts).where(accounts.c.id == org_id).values(limits))
            self.insert_account(connection, "project", org_id, "default", None)
            if amount:
                self._grant(connection, org_id, amount * MICRO, f"sign-up {org_id}")
            return find_account(connection, by, org_id, "org")

    def create_project(self, by: Identity, org_id: str, name: str) -> AccountRecord:
        by.require(Scope.ADMIN)
        with self.store.write() as connection:
            find_account(connection, by, org_id, "org")
            return find_account(
                connection, by, self.insert_account(connection, "project", org_id, name, None), "project"
            )

    def create_user(self, by: Identity, org_id: str, email: str) -> UserRecord:
        by.require(Scope.ADMIN)
        user = UserRecord(make_id("user"), org_id, clean_name(email, "email"), int(self.clock()), False)
        fields = {name: value for name, value in asdict(user).items() if name != "is_disabled"}
        with self.store.write() as connection:
            find_account(connection, by, org_id, "org")
            connection.execute(insert(users).values(fields))
        return user

    def remove_user(self, by: Identity, user_id: str) -> None:
        """Disables a user, the keys of that user, and all keys that were created with those keys."""
        by.require(Scope.ADMIN)
        now = int(self.clock())
        with self.store.write() as connection:
            change = update(users).where(users.c.id == user_id).values(disabled_at=now)
            if not connection.execute(change).rowcount:
                raise NotFound("no such user")
            owned = select(api_keys.c.id).where(api_keys.c.user_id == user_id)
            connection.execute(update(accounts).where(accounts.c.id.in_(owned)).values(disabled_at=now))

    def list_users(self, by: Identity, org_id: str = "") -> list[UserRecord]:
        """Users of one organisation, or of all."""
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

    def list_accounts(self, by: Identity, kind: str, within: str = "") -> list[AccountRecord]:
        """Accounts of a kind (`org`, `project` or `key`) that `by` may see, optionally only those below `within`."""
        query = select(accounts).where(accounts.c.kind == kind).order_by(accounts.c.created_at, accounts.c.id)
        with self.store.read() as connection:
            if within:
                above = find_account(connection, by, within)
                query = query.where(accounts.c.path.startswith(above.path + "/", autoescape=True))
            rows = connection.execute(query).all()
        return [record_of(row) for row in rows if by.sees(row.path)]

    def get_account(self, by: Identity, account_id: str, kind: str | None = None) -> AccountRecord:
        with self.store.read() as connection:
            return find_account(connection, by, account_id, kind)

    def list_path(self, by: Identity) -> list[AccountRecord]:
        """The accounts that requests of `by` are charged to: organisation, project, and the keys down to itself."""
        with self.store.read() as connection:
            rows = connection.execute(select(accounts).where(accounts.c.id.in_(by.account_ids))).all()
        return sorted((record_of(row) for row in rows), key=lambda account: len(account.path))

    def rename(self, by: Identity, account_id: str, name: str) -> None:
        by.require(Scope.ADMIN)
        self._set(by, account_id, {"name": clean_name(name, "name")})

    def disable(self, by: Identity, account_id: str) -> None:
        """Disables an organisation, project or key and everything below it from the next request on. Revokes keys."""
        by.require(Scope.KEYS)
        self._set(by, account_id, {"disabled_at": int(self.clock())})

    def enable(self, by: Identity, account_id: str) -> None:
        by.require(Scope.ADMIN)
        self._set(by, account_id, {"disabled_at": None})

    def set_budget(self, by: Identity, account_id: str, amount: int | None, period: str | None = None) -> AccountRecord:
        """Sets the micro-credits that a project or key may spend, in total or per UTC `day` or `month`, from now on."""
        by.require(Scope.ADMIN)
        if period not in (None, "day", "month") or not 0 <= (amount or 0) <= MAX_AMOUNT:
            raise InvalidRequest("a budget is an amount, in total or per day or month", param="budget")
        with self.store.write() as connection:
            account = find_account(connection, by, account_id)
            if account.kind == "org":
                raise InvalidRequest("an organisation has credits, not a budget; add credits", param="budget")
            since = {"period_at": period_start(period, self.clock()), "spent_before": accounts.c.spent if period else 0}
            change = update(accounts).where(accounts.c.id == account_id)
            connection.execute(change.values(allowance=amount, period=period, **since))
            return find_account(connection, by, account_id)

    def set_may_leave(self, by: Identity, project_id: str, may_leave: bool) -> AccountRecord:
        """Sets whether the prompts of a project may be sent to upstreams of hybrid routing."""
        by.require(Scope.ADMIN)
        with self.store.write() as connection:
            find_account(connection, by, project_id, "project")
            change = update(accounts).where(accounts.c.id == project_id)
            connection.execute(change.values(may_leave=int(may_leave)))
            return find_account(connection, by, project_id, "project")

    def may_leave(self, project_id: str) -> bool:
        query = select(accounts.c.may_leave).where(accounts.c.id == project_id, accounts.c.kind == "project")
        with self.store.read() as connection:
            return bool(connection.execute(query).scalar_one_or_none())

    def set_limits(self, by: Identity, account_id: str, limits: Limits) -> None:
        by.require(Scope.ADMIN)
        self._set(by, account_id, limit_columns(limits))

    def add_credits(self, by: Identity, org_id: str, amount: int, reference: str) -> AccountRecord:
        """Adds micro-credits. A repeated `reference` raises Conflict, so a payment is credited once."""
        by.require(Scope.ADMIN)
        with self.store.write() as connection:
            if find_account(connection, by, org_id, "org").allowance is None:
                raise InvalidRequest("this organisation has unlimited credits", param="org_id")
            self._grant(connection, org_id, amount, clean_name(reference, "reference"))
            return find_account(connection, by, org_id, "org")

    def set_price(self, by: Identity, model: str, price: Price) -> None:
        """Sets the price of a model from the next reservation on; open reservations keep theirs."""
        by.require(Scope.ADMIN)
        with self.store.write() as connection:
            change = upsert(connection, prices).values(model=clean_name(model, "model"), **asdict(price))
            connection.execute(change.on_conflict_do_update(index_elements=["model"], set_=asdict(price)))

    def list_prices(self) -> dict[str, Price]:
        with self.store.read() as connection:
            rows = connection.execute(select(prices).order_by(prices.c.model)).all()
        return {row.model: Price(row.input, row.cached, row.output) for row in rows}

    def insert_account(self, connection: Connection, kind: str, above: str, name: str, allowance: int | None) -> str:
        """Inserts an account below the path `above`; returns its id."""
        account_id = make_id({"org": "org", "project": "proj", "key": "key"}[kind])
        path = f"{above}/{account_id}" if above else account_id
        row = {"id": account_id, "kind": kind, "path": path, "name": clean_name(name, "name"), "allowance": allowance}
        connection.execute(insert(accounts).values(created_at=int(self.clock()), **row))
        return account_id

    def _grant(self, connection: Connection, org_id: str, amount: int, reference: str) -> None:
        if not 0 < amount <= MAX_AMOUNT:
            raise InvalidRequest("credits are a positive whole number", param="amount")
        row = {"org_id": org_id, "amount": amount, "reference": reference, "granted_at": int(self.clock())}
        connection.execute(insert(grants).values(row))
        total = connection.execute(select(func.sum(grants.c.amount)).where(grants.c.org_id == org_id)).scalar_one()
        if total > MAX_AMOUNT:
            raise InvalidRequest("the total of all credits would be too large", param="amount")
        connection.execute(update(accounts).where(accounts.c.id == org_id).values(allowance=int(total)))

    def _set(self, by: Identity, account_id: str, values: dict[str, Any]) -> None:
        with self.store.write() as connection:
            find_account(connection, by, account_id)
            connection.execute(update(accounts).where(accounts.c.id == account_id).values(values))


def limit_columns(limits: Limits) -> dict[str, int | None]:
    return {
        "max_requests": limits.requests,
        "max_input": limits.input_tokens,
        "max_output": limits.output_tokens,
        "max_in_flight": limits.concurrency,
    }


def clean_name(text: str, param: str) -> str:
    """Checks that a name is printable, not blank, and not too long."""
    if not (text.strip() and text.isprintable() and len(text) <= MAX_NAME_LEN):
        raise InvalidRequest(f"{param} needs 1 to {MAX_NAME_LEN} printable characters", param=param)
    return text


def find_account(connection: Connection, by: Identity, account_id: str, kind: str | None = None) -> AccountRecord:
    row = connection.execute(select(accounts).where(accounts.c.id == account_id)).one_or_none()
    if row is None or not by.sees(row.path) or kind not in (None, row.kind):
        raise NotFound("no such organisation, project or key")
    return record_of(row)


def find_users(connection: Connection, user_ids: Collection[str]) -> dict[str, UserRecord]:
    rows = connection.execute(select(users).where(users.c.id.in_(user_ids))).all() if user_ids else []
    return {row.id: user_of(row) for row in rows}


def user_of(row: Any) -> UserRecord:
    return UserRecord(row.id, row.org_id, row.email, row.created_at, row.disabled_at is not None)


def record_of(row: Any) -> AccountRecord:
    return AccountRecord(
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
        may_leave=bool(row.may_leave),
    )
