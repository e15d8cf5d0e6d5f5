"""`Accounts`, the asynchronous interface for servers, and `AdminService`, the synchronous one for operators.

Lookups run on a few reader threads, ledger entries on one writer thread. Methods raise only `quicksilver.errors`. If
the database cannot be reached, they raise LedgerUnavailable. Nothing here depends on HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import select

from quicksilver.accounts.api_keys import ApiKeys
from quicksilver.accounts.budgets import Demand, limits_of, load_budgets, refusal_of
from quicksilver.accounts.charging import RequestOutcome, charge_for
from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Checkpoint, Close, HandOver, How, Reserve
from quicksilver.accounts.idempotency import find_claims, make_idempotency, saved_reply
from quicksilver.accounts.identity import Identity
from quicksilver.accounts.key_lookup import KeyLookup
from quicksilver.accounts.keys import Pepper, load_pepper, make_id
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.limits import load_windows, tightest
from quicksilver.accounts.migrations import require_current, upgrade
from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.organizations import Organizations
from quicksilver.accounts.records import (
    Charge,
    Idempotency,
    LimitState,
    NewKey,
    Order,
    Price,
    Reservation,
    SavedReply,
    StoredReply,
    UsageBucket,
    UsageQuery,
)
from quicksilver.accounts.schema import accounts, settings
from quicksilver.accounts.store import Store, upsert
from quicksilver.accounts.usage import read_usage
from quicksilver.accounts.writer import Writer
from quicksilver.core import Usage
from quicksilver.errors import QuicksilverError

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AdminService:
    """Organisations, keys and usage; shared by the admin HTTP API and the command line."""

    store: Store
    pepper: Pepper
    organizations: Organizations
    keys: ApiKeys

    def usage(self, by: Identity, query: UsageQuery) -> list[UsageBucket]:
        return read_usage(self.store, by, query)


def open_admin(url: str, config: AccountsConfig, clock: Clock = time.time) -> AdminService:
    """Opens the database and its pepper file, and creates or upgrades them where needed."""
    store = Store(url, config.lock_wait_s)
    try:
        upgrade(store)
        require_current(store)
        pepper = load_pepper(pepper_path(store, config))
        _require_matching(store, pepper)
    except BaseException:
        store.close()
        raise
    organizations = Organizations(store, config, clock)
    return AdminService(store, pepper, organizations, ApiKeys(organizations, pepper))


class Accounts:
    """Keys, limits and the ledger for one server process."""

    def __init__(self, admin: AdminService, config: AccountsConfig, clock: Clock = time.time) -> None:
        self._admin = admin
        self._config = config
        self._clock = clock
        self._key_lookup = KeyLookup(admin.store, admin.pepper, config.auth_cache_s, clock)
        self._readers = ThreadPoolExecutor(config.num_readers, thread_name_prefix="accounts-reader")
        ledger = Ledger(make_id("proc"), config.default_price, config.reply_kept_s, clock)
        self._writer = Writer(admin.store, ledger, config)
        self._objects = ObjectStore(admin.store, clock)

    @classmethod
    async def open(cls, url: str, config: AccountsConfig | None = None, clock: Clock = time.time) -> Accounts:
        """Opens and upgrades the database, and starts the writer thread and its heartbeat."""
        config = config or AccountsConfig()
        admin = await asyncio.to_thread(open_admin, url, config, clock)
        opened = cls(admin, config, clock)
        try:
            await asyncio.to_thread(opened._writer.start)
        except BaseException:
            admin.store.close()
            raise
        return opened

    async def close(self) -> None:
        """Closes the reservations of this process, each from its last checkpoint, and the database."""
        await asyncio.to_thread(self._writer.close)
        self._readers.shutdown()
        self._admin.store.close()

    @property
    def needs_restart(self) -> bool:
        """True after a failed fsync: only a restart allows paid requests again."""
        return self._admin.store.is_broken

    @property
    def is_writable(self) -> bool:
        """Whether the ledger can be written: false while the disk is full, the database is locked or unreachable.

        For readiness probes. Returns the result of the last heartbeat or entry, so it never waits for the database.
        """
        return not self.needs_restart and self._writer.is_writable

    @property
    def default_price(self) -> Price:
        """Price of a model without a price of its own."""
        return self._config.default_price

    async def bootstrap(self) -> NewKey | None:
        """The first admin key; None if it was made before."""
        return await self._read(self._admin.keys.bootstrap)

    async def authenticate(self, bearer: str | None) -> Identity:
        """The identity of a bearer token (without the word `Bearer`); raises AuthenticationFailed."""
        digest = self._key_lookup.digest(bearer)
        known = self._key_lookup.cached(digest)
        return known if known is not None else await self._read(lambda: self._key_lookup.look_up(digest))

    async def is_live(self, identity: Identity) -> bool:
        """Whether the key of a running stream is still valid. Streams ask about once a second."""
        return await self._read(lambda: self._key_lookup.is_live(identity))

    def digest(self, purpose: str, message: bytes) -> str:
        """A digest under the secret of these accounts; each purpose has a key of its own."""
        return self._admin.pepper.digest(purpose, message)

    def idempotency(self, key: str, request: bytes) -> Idempotency:
        """An Idempotency-Key together with a digest of its request (method, path and body)."""
        return make_idempotency(self._admin.pepper, key, request)

    async def recall(self, identity: Identity, idempotency: Idempotency) -> SavedReply | None:
        """The saved reply, None for a new key. Raises Conflict while in flight, IdempotencyMismatch on another body."""
        return await self._read(lambda: self._recall(identity, idempotency))

    async def reserve(self, identity: Identity, order: Order) -> Reservation:
        """Reserves the highest cost of the order. If the caller is cancelled, nothing stays reserved.

        Raises AuthenticationFailed, PermissionDenied, InsufficientQuota, RateLimited, InvalidRequest (one request
        above a whole minute's limit), Conflict, IdempotencyMismatch, LedgerUnavailable.
        """
        return await self._reserved(self._writer.submit(Reserve(identity, order)))

    async def hand_over(self, request_id: str, usage: Usage | None, identity: Identity, order: Order) -> Reservation:
        """Closes the row `request_id`, which is charged for `usage` or is free if that is None, and reserves the next
        row of the same request, in one transaction. Raises what `reserve` raises; then nothing has changed."""
        close = Close(request_id, How.RELEASE if usage is None else How.SETTLE, usage or Usage())
        return await self._reserved(self._writer.submit(HandOver(close, Reserve(identity, order))))

    async def _reserved(self, future: Future[Any]) -> Reservation:
        try:
            reservation: Reservation = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._undo)
            raise
        return reservation

    async def checkpoint(self, request_id: str, tokens_on_wire: int, cached_tokens: int | None = None) -> None:
        """Records how many answer tokens have been sent. After LedgerUnavailable, end the stream with an error."""
        await self._write(Checkpoint(request_id, tokens_on_wire, cached_tokens))

    async def settle(
        self, request_id: str, usage: Usage, reply: SavedReply | None = None, stored: StoredReply | None = None
    ) -> Charge:
        """Charges the usage, and stores what the reply leaves. Call it before the last byte of the answer is sent;
        repeated calls charge once. Raises Conflict, and changes nothing, if the lease of `stored` is lost.

        After LedgerUnavailable the answer must not be completed. A second call does not help: the last checkpoint
        decides the charge.
        """
        charge: Charge = await self._write(Close(request_id, How.SETTLE, usage, reply, stored))
        return charge

    async def release(
        self, request_id: str, reply: SavedReply | None = None, stored: StoredReply | None = None
    ) -> Charge:
        """Closes a reservation without a charge. Returns the charge of the row, which may have been closed before."""
        charge: Charge = await self._write(Close(request_id, How.RELEASE, reply=reply, stored=stored))
        return charge

    async def close_request(
        self, request_id: str, outcome: RequestOutcome, usage: Usage, delivered: int | None = None
    ) -> Charge:
        """Settle or release, as `charging.charge_for` decides. Returns how the row was closed."""
        charged = charge_for(outcome, usage, delivered)
        return await (self.release(request_id) if charged is None else self.settle(request_id, charged))

    async def check_budgets(self, identity: Identity) -> None:
        """Raises what `reserve` would raise for the smallest request: spent budgets and reached rate limits. Nothing is
        reserved. The server calls it before it reads a long body."""
        refusal = await self._read(lambda: self._refusal(identity))
        if refusal is not None:
            raise refusal

    async def limits(self, identity: Identity) -> LimitState:
        """Remaining limits now. `reserve` returns the same after each reservation."""
        return await self._read(lambda: self._limits(identity))

    async def usage(self, by: Identity, query: UsageQuery) -> list[UsageBucket]:
        return await self._read(lambda: self._admin.usage(by, query))

    async def stored(self, work: Callable[[ObjectStore], T]) -> T:
        """Runs synchronous work on the objects that projects stored."""
        return await self._read(lambda: work(self._objects))

    async def identity_of_key(self, key_id: str) -> Identity:
        """The identity of a key that started work which outlives its request; raises AuthenticationFailed."""
        return await self._read(lambda: self._key_lookup.by_id(key_id))

    async def may_leave(self, identity: Identity) -> bool:
        """Whether the prompts of the identity's project may be sent to upstreams. Always read from the database."""
        return await self._read(lambda: self._admin.organizations.may_leave(identity.project_id))

    async def admin(self, work: Callable[[AdminService], T]) -> T:
        """Runs synchronous work, as in `await accounts.admin(lambda admin: admin.keys.list_keys(by))`."""
        return await self._read(lambda: work(self._admin))

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def _write(self, entry: Checkpoint | Close) -> Any:
        # Shielded: when the caller is cancelled, the entry is still written.
        outcome = asyncio.wrap_future(self._writer.submit(entry))
        outcome.add_done_callback(_retrieve_exception)
        return await asyncio.shield(outcome)

    def _undo(self, future: Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._writer.submit(Close(future.result().request_id, How.RELEASE))

    def _recall(self, identity: Identity, idempotency: Idempotency) -> SavedReply | None:
        place = (identity.key_id, idempotency.key)
        with self._admin.store.read() as connection:
            claim = find_claims(connection, [place], self._clock() - self._config.reply_kept_s).get(place)
        return None if claim is None else saved_reply(claim, idempotency)

    def _refusal(self, identity: Identity) -> QuicksilverError | None:
        with self._admin.store.read() as connection:
            budgets = load_budgets(connection, identity.account_ids, self._clock(), is_locked=False)
        return refusal_of(budgets.values(), Demand(amount=1, input_tokens=1, output_tokens=1))

    def _limits(self, identity: Identity) -> LimitState:
        now = self._clock()
        with self._admin.store.read() as connection:
            rows = connection.execute(select(accounts).where(accounts.c.id.in_(identity.account_ids))).all()
            windows = load_windows(connection, identity.account_ids, now)
        return tightest((limits_of(row), windows[row.id]) for row in rows)


def _retrieve_exception(outcome: asyncio.Future[Any]) -> None:
    """Prevents asyncio's warning about a failure that no caller awaits; the writer retries it."""
    if not outcome.cancelled():
        outcome.exception()


def pepper_path(store: Store, config: AccountsConfig) -> Path:
    if config.pepper_path is not None:
        return config.pepper_path
    if store.is_sqlite:
        return Path(f"{store.url.database}.pepper")
    raise QuicksilverError(
        "PostgreSQL needs a pepper file that all servers share; pass --pepper", code="pepper_missing"
    )


def _require_matching(store: Store, pepper: Pepper) -> None:
    """Refuses the pepper of another database, under which every key would be unknown."""
    fingerprint = pepper.digest("fingerprint", b"")
    with store.write() as connection:
        row = {"name": "pepper", "value": fingerprint}
        connection.execute(upsert(connection, settings).values(row).on_conflict_do_nothing(index_elements=["name"]))
        known = connection.execute(select(settings.c.value).where(settings.c.name == "pepper")).scalar_one()
    if known != fingerprint:
        raise QuicksilverError("the pepper file belongs to another database", code="pepper_mismatch")
