"""The ledger: entries that reserve an amount, record progress (checkpoint), close a reservation with or without a
charge, or hand it over to the next row of a request, in batches that share one transaction.

A `_Batch` loads and locks all rows that its entries need (ledger rows first, then accounts), applies each entry in
memory, and writes the changes back. Balances, budgets, limits, usage, saved replies and stored objects change in the
same transaction as the ledger row, so they always agree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from quicksilver.accounts.budgets import Budget, Demand, load_budgets, refusal_of, save_budgets
from quicksilver.accounts.charging import RequestOutcome, charge_for
from quicksilver.accounts.entries import CHANGING, Checkpoint, Close, Entry, HandOver, How, LedgerRow, Reserve
from quicksilver.accounts.idempotency import (
    drop_claims,
    find_claims,
    move_claims,
    save_claims,
    save_replies,
    saved_reply,
)
from quicksilver.accounts.limits import tightest
from quicksilver.accounts.objects import put_objects, require_lease
from quicksilver.accounts.records import Charge, Idempotency, Price, Reservation, SavedReply, State, StoredReply
from quicksilver.accounts.schema import ledger, prices
from quicksilver.accounts.usage import Rollup
from quicksilver.core import Usage
from quicksilver.errors import AuthenticationFailed, Conflict, LedgerUnavailable, NotFound, QuicksilverError

_ROWS = (
    select(ledger)
    .where(ledger.c.request_id.in_(bindparam("ids", expanding=True)))
    .order_by(ledger.c.request_id)
    .with_for_update()
)
_INSERT = insert(ledger)
_UPDATE = (
    update(ledger)
    .where(ledger.c.request_id == bindparam("request"))
    .values({name: bindparam(name) for name in CHANGING})
)
_PRICES = select(prices).where(prices.c.model.in_(bindparam("models", expanding=True)))
Outcome = Reservation | Charge | None | QuicksilverError


@dataclass(frozen=True, slots=True)
class Ledger:
    """Applies entries for one process. `owner` identifies the process in its open rows."""

    owner: str
    default_price: Price
    reply_kept_s: int
    clock: Callable[[], float]

    def apply(self, connection: Connection, entries: Sequence[Entry]) -> list[Outcome]:
        """Writes the entries, in order, in the caller's transaction. A refused entry changes nothing."""
        batch = _Batch(self, connection, entries)
        outcomes = [batch.write(entry) for entry in entries]
        batch.save(connection)
        return outcomes


class _Batch:
    """The rows of one transaction, held in memory until `save`."""

    def __init__(self, ledger: Ledger, connection: Connection, entries: Sequence[Entry]) -> None:
        reserves = [entry for entry in entries if isinstance(entry, Reserve)]
        self._ledger, self._connection = ledger, connection
        self._now = ledger.clock()
        self._rows = _load_rows(connection, entries)
        self._budgets = load_budgets(connection, self._account_ids(entries), self._now)
        opening = [*reserves, *(entry.reserve for entry in entries if isinstance(entry, HandOver))]
        self._prices = load_prices(connection, {entry.order.model for entry in opening})
        self._claims = find_claims(connection, _claims_of(reserves), self._now - ledger.reply_kept_s)
        self._rollup = Rollup()
        self._opened: list[LedgerRow] = []
        self._changed: dict[str, LedgerRow] = {}
        self._new_claims: list[dict[str, Any]] = []
        self._saved: dict[str, SavedReply] = {}
        self._stored: list[StoredReply] = []
        # Idempotency keys that pass from one row to another.
        self._moved: dict[str, str] = {}
        self._dropped: set[str] = set()

    def write(self, entry: Entry) -> Outcome:
        try:
            match entry:
                case Reserve():
                    return self._reserve(entry)
                case Checkpoint():
                    self._checkpoint(entry)
                case Close():
                    return self._close(entry)
                case HandOver():
                    return self._hand_over(entry)
        except QuicksilverError as refusal:
            return refusal
        return None

    def save(self, connection: Connection) -> None:
        _insert_rows(connection, self._opened)
        _update_rows(connection, list(self._changed.values()))
        save_budgets(connection, self._budgets.values())
        self._rollup.save(connection)
        save_claims(connection, self._new_claims)
        move_claims(connection, self._moved)
        save_replies(connection, self._saved)
        drop_claims(connection, self._dropped)
        for stored in self._stored:
            put_objects(connection, stored.owner, stored.objects, self._now)

    def _account_ids(self, entries: Sequence[Entry]) -> set[str]:
        closing = {entry.request_id for entry in entries if isinstance(entry, Close | HandOver)}
        paths = [entry.identity.path for entry in entries if isinstance(entry, Reserve)]
        paths += [row.path for row in self._rows.values() if row.is_open and row.request_id in closing]
        return {account_id for path in paths for account_id in path.split("/")}

    def _path(self, path: str) -> list[Budget]:
        """The budgets of a path, the key first."""
        return [self._budgets[account_id] for account_id in reversed(path.split("/"))]

    def _reserve(self, entry: Reserve) -> Reservation:
        order, identity = entry.order, entry.identity
        identity.require_model(order.model)
        self._require_valid(entry)
        price = order.price or self._prices.get(order.model, self._ledger.default_price)
        price = price.half if order.is_half_price else price
        amount = price.cost(Usage(order.max_input, 0, order.max_output))
        rated = (order.max_input, order.max_output) if order.is_rated else (0, 0)
        path, demand = self._path(identity.path), Demand(amount, *rated)
        if (refusal := refusal_of(path, demand)) is not None:
            raise refusal
        for budget in path:
            budget.take(demand)
        self._open_row(entry, price, amount)
        return Reservation(order.request_id, amount, tightest((budget.limits, budget.window) for budget in path))

    def _require_valid(self, entry: Reserve) -> None:
        expires_at = entry.identity.expires_at
        is_known = all(account_id in self._budgets for account_id in entry.identity.account_ids)
        if not is_known or (expires_at is not None and expires_at <= self._now):
            raise AuthenticationFailed("this API key is not valid here")
        if entry.request_id in self._rows:
            raise Conflict("this request id is in the ledger already")
        if (idempotency := entry.order.idempotency) is not None:
            self._require_unclaimed(entry.identity.key_id, idempotency)

    def _require_unclaimed(self, key_id: str, idempotency: Idempotency) -> None:
        claim = self._claims.get((key_id, idempotency.key))
        if claim is not None:
            saved_reply(claim, idempotency)
            raise Conflict("a request with this Idempotency-Key has just ended; send it again for its reply")
        if any(new["key_id"] == key_id and new["idempotency_key"] == idempotency.key for new in self._new_claims):
            raise Conflict("a request with this Idempotency-Key is still running; try again when it has ended")

    def _open_row(self, entry: Reserve, price: Price, amount: int) -> None:
        order, identity = entry.order, entry.identity
        row = LedgerRow(
            request_id=order.request_id,
            path=identity.path,
            key_id=identity.key_id,
            model=order.model,
            owner=self._ledger.owner,
            created_at=int(self._now),
            max_input=order.max_input,
            max_output=order.max_output,
            price=price,
            reserved=amount,
            is_rated=int(order.is_rated and any(budget.limits.is_rated for budget in self._path(identity.path))),
            has_claim=int(order.idempotency is not None),
        )
        self._rows[row.request_id] = row
        self._opened.append(row)
        if order.idempotency is not None:
            self._new_claims.append(
                {
                    "key_id": identity.key_id,
                    "idempotency_key": order.idempotency.key,
                    "body_digest": order.idempotency.body_digest,
                    "request_id": order.request_id,
                    "created_at": int(self._now),
                }
            )

    def _checkpoint(self, checkpoint: Checkpoint) -> None:
        row = self._rows.get(checkpoint.request_id)
        if row is None or not row.is_open:
            raise LedgerUnavailable("the ledger has closed this request; send it again")
        row.advance(checkpoint)
        self._changed[row.request_id] = row

    def _close(self, entry: Close) -> Charge:
        row = self._rows.get(entry.request_id)
        if row is None:
            return _never_opened(entry)
        if row.is_open:
            self._finish(row, entry)
        elif entry.how is How.SETTLE and (row.state != State.SETTLED or row.closed_by != "request"):
            raise LedgerUnavailable("the ledger has closed this request; send it again")
        return row.charge()

    def _hand_over(self, entry: HandOver) -> Reservation:
        row, order = self._rows.get(entry.request_id), entry.reserve.order
        if row is None or not row.is_open:
            raise LedgerUnavailable("the ledger has closed this request; send it again")
        path = self._path(row.path)
        # The place in flight of the first row is that of the second one.
        for budget in path:
            budget.in_flight -= 1
        try:
            reservation = self._reserve(replace(entry.reserve, order=replace(order, idempotency=None)))
        finally:
            for budget in path:
                budget.in_flight += 1
        if row.has_claim:
            row.has_claim, self._rows[order.request_id].has_claim = 0, 1
            self._moved[row.request_id] = order.request_id
        self._close(entry.close)
        return reservation

    def _finish(self, row: LedgerRow, entry: Close) -> None:
        if entry.stored is not None:
            require_lease(self._connection, entry.stored)
            self._stored.append(entry.stored)
        if entry.checkpoint is not None:
            row.advance(entry.checkpoint)
        usage = _charged_usage(row, entry)
        row.close(State.RELEASED if usage is None else State.SETTLED, _closer(entry), self._now)
        self._charge(row, usage or Usage())
        if row.has_claim and entry.how is not How.ORPHAN and entry.reply is not None:
            self._saved[row.request_id] = entry.reply
        elif row.has_claim:
            self._dropped.add(row.request_id)

    def _charge(self, row: LedgerRow, usage: Usage) -> None:
        row.input_tokens, row.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        row.output_tokens, row.cost = usage.completion_tokens, row.price.cost(usage)
        self._changed[row.request_id] = row
        unused = (0, row.max_input - usage.prompt_tokens, row.max_output - usage.completion_tokens)
        for budget in self._path(row.path):
            budget.close(row.reserved, row.cost)
            if row.is_rated:
                budget.window.give_back(row.created_at, unused)
        if row.state == State.SETTLED:
            self._rollup.add(row.key_id, row.model, self._now, row.charge())


def _charged_usage(row: LedgerRow, entry: Close) -> Usage | None:
    """None where the row is released. An orphan with an idempotency key is: the repeated request is charged in full."""
    if entry.how is How.SETTLE:
        return row.bounded(entry.usage)
    if entry.how is How.RELEASE or row.has_claim:
        return None
    usage = charge_for(RequestOutcome.ORPHANED, row.wire_usage(), row.wire_tokens)
    return None if usage is None else row.bounded(usage)


def _closer(entry: Close) -> str:
    return "sweep" if entry.how is How.ORPHAN else "request"


def _never_opened(entry: Close) -> Charge:
    # A release of a reservation that was never written is harmless; a charge for one is not.
    if entry.how is How.SETTLE:
        raise NotFound("no reservation has this request id")
    return Charge(entry.request_id, State.RELEASED, 0, Usage())


def _claims_of(reserves: Sequence[Reserve]) -> set[tuple[str, str]]:
    return {(e.identity.key_id, e.order.idempotency.key) for e in reserves if e.order.idempotency is not None}


def _load_rows(connection: Connection, entries: Sequence[Entry]) -> dict[str, LedgerRow]:
    """Rows that the entries refer to. Reserve needs no lookup: the unique index refuses a repeated request id."""
    wanted = {entry.request_id for entry in entries if not isinstance(entry, Reserve)}
    found = connection.execute(_ROWS, {"ids": sorted(wanted)}) if wanted else ()
    return {row.request_id: LedgerRow.of(row) for row in found}


def load_prices(connection: Connection, models: set[str]) -> dict[str, Price]:
    if not models:
        return {}
    rows = connection.execute(_PRICES, {"models": sorted(models)})
    return {row.model: Price(row.input, row.cached, row.output) for row in rows}


def _insert_rows(connection: Connection, rows: Sequence[LedgerRow]) -> None:
    if rows:
        connection.execute(_INSERT, [row.as_inserted() for row in rows])


def _update_rows(connection: Connection, rows: Sequence[LedgerRow]) -> None:
    if rows:
        connection.execute(_UPDATE, [{"request": row.request_id, **row.as_changed()} for row in rows])
