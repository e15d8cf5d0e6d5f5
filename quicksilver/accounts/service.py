"""`Accounts`: the front door of the room for a server. Asynchronous, knows no HTTP.

Lookups run on a few reader threads, ledger entries on the one writer thread. Every method either does what it says
or raises one of `quicksilver.errors`; when the database is away it raises LedgerUnavailable, never less.
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

from quicksilver.accounts.budgets import limits_of
from quicksilver.accounts.charging import RequestOutcome, charge_for
from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Checkpoint, Close, How, Reserve
from quicksilver.accounts.idempotency import answer, find_claims, make_idempotency
from quicksilver.accounts.identity import Identity
from quicksilver.accounts.key_minting import Mint
from quicksilver.accounts.keyring import Keyring
from quicksilver.accounts.keys import Pepper, load_pepper, make_id
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.limits import load_windows, tightest
from quicksilver.accounts.migrations import require_current, upgrade
from quicksilver.accounts.organizations import Directory
from quicksilver.accounts.records import Charge, Idempotency, LimitState, Order, Price, Reservation, SavedReply
from quicksilver.accounts.schema import purses, settings
from quicksilver.accounts.store import Store, upsert
from quicksilver.accounts.usage import read_usage
from quicksilver.accounts.views import NewKey, UsageBucket, UsageQuery
from quicksilver.accounts.writer import Writer
from quicksilver.core import Usage
from quicksilver.errors import QuicksilverError

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Desk:
    """The synchronous side, for operators and admin requests."""

    store: Store
    pepper: Pepper
    directory: Directory
    mint: Mint

    def usage(self, by: Identity, query: UsageQuery) -> list[UsageBucket]:
        return read_usage(self.store, by, query)


def open_desk(url: str, config: AccountsConfig, clock: Clock = time.time) -> Desk:
    """Open and, where needed, create the books and the pepper that belongs to them."""
    store = Store(url, config.lock_wait_s)
    try:
        upgrade(store)
        require_current(store)
        pepper = load_pepper(pepper_path(store, config))
        _require_matching(store, pepper)
    except BaseException:
        store.close()
        raise
    directory = Directory(store, config, clock)
    return Desk(store, pepper, directory, Mint(directory, pepper))


class Accounts:
    """Keys, limits and the ledger for one server process."""

    def __init__(self, desk: Desk, config: AccountsConfig, clock: Clock = time.time) -> None:
        self._desk = desk
        self._config = config
        self._clock = clock
        self._keyring = Keyring(desk.store, desk.pepper, config.auth_cache_s, clock)
        self._readers = ThreadPoolExecutor(config.num_readers, thread_name_prefix="accounts-reader")
        books = Ledger(make_id("proc"), config.default_price, config.reply_kept_s, clock)
        self._writer = Writer(desk.store, books, config)

    @classmethod
    async def open(cls, url: str, config: AccountsConfig | None = None, clock: Clock = time.time) -> Accounts:
        """Open the books, upgrade their schema, and begin to sweep after processes that died."""
        config = config or AccountsConfig()
        desk = await asyncio.to_thread(open_desk, url, config, clock)
        accounts = cls(desk, config, clock)
        try:
            await asyncio.to_thread(accounts._writer.start)
        except BaseException:
            desk.store.close()
            raise
        return accounts

    async def close(self) -> None:
        """Close every reservation this process still holds, from its last checkpoint, and let go of the database."""
        await asyncio.to_thread(self._writer.close)
        self._readers.shutdown()
        self._desk.store.close()

    @property
    def needs_restart(self) -> bool:
        """True after a failed fsync: the process must be replaced before anything paid is served again."""
        return self._desk.store.is_broken

    @property
    def default_price(self) -> Price:
        """Of a model that has no price of its own."""
        return self._config.default_price

    async def bootstrap(self) -> NewKey | None:
        """The first admin key, once; None ever after."""
        return await self._read(self._desk.mint.bootstrap)

    async def authenticate(self, bearer: str | None) -> Identity:
        """Who a bearer token is (without the word `Bearer`); raises AuthenticationFailed."""
        digest = self._keyring.digest(bearer)
        known = self._keyring.remembered(digest)
        return known if known is not None else await self._read(lambda: self._keyring.look_up(digest))

    async def is_live(self, identity: Identity) -> bool:
        """Whether the key of a running stream is still valid; to be asked every second or so."""
        return await self._read(lambda: self._keyring.is_live(identity))

    def idempotency(self, key: str, request: bytes) -> Idempotency:
        """A client's Idempotency-Key bound to its request (method, path and body)."""
        return make_idempotency(self._desk.pepper, key, request)

    async def recall(self, identity: Identity, idempotency: Idempotency) -> SavedReply | None:
        """The saved reply, None for a new key. Raises Conflict while in flight, IdempotencyMismatch on another body."""
        return await self._read(lambda: self._recall(identity, idempotency))

    async def reserve(self, identity: Identity, order: Order) -> Reservation:
        """Set the most the order may cost aside, or raise why not. If the caller is cancelled, nothing stays reserved.

        Raises AuthenticationFailed, PermissionDenied, InsufficientQuota, RateLimited, InvalidRequest (one request
        above a whole minute's limit), Conflict, IdempotencyMismatch, LedgerUnavailable.
        """
        future = self._writer.submit(Reserve(identity, order))
        try:
            reservation: Reservation = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._undo)
            raise
        return reservation

    async def checkpoint(self, request_id: str, tokens_on_wire: int, cached_tokens: int | None = None) -> None:
        """Note how many answer tokens have been sent. Raises LedgerUnavailable: then end the stream with an error."""
        await self._write(Checkpoint(request_id, tokens_on_wire, cached_tokens))

    async def settle(self, request_id: str, usage: Usage, reply: SavedReply | None = None) -> Charge:
        """Charge what was used, once, however often it is called; before the last byte of the answer is sent.

        Raises LedgerUnavailable: then the answer must not be completed, calling again is of no use, and the last
        checkpoint decides the charge.
        """
        charge: Charge = await self._write(Close(request_id, How.SETTLE, usage, reply))
        return charge

    async def release(self, request_id: str) -> Charge:
        """Close a reservation without a charge, for requests that came to nothing. Returns how the row was closed."""
        charge: Charge = await self._write(Close(request_id, How.RELEASE))
        return charge

    async def close_request(
        self, request_id: str, outcome: RequestOutcome, usage: Usage, delivered: int | None = None
    ) -> Charge:
        """Settle or release, as `charging.charge_for` decides. Returns how the row was closed."""
        charged = charge_for(outcome, usage, delivered)
        return await (self.release(request_id) if charged is None else self.settle(request_id, charged))

    async def limits(self, identity: Identity) -> LimitState:
        """What is left of the limits now; `reserve` returns the same after each reservation."""
        return await self._read(lambda: self._limits(identity))

    async def usage(self, by: Identity, query: UsageQuery) -> list[UsageBucket]:
        return await self._read(lambda: self._desk.usage(by, query))

    async def admin(self, work: Callable[[Desk], T]) -> T:
        """Run synchronous work at the desk, as in `await accounts.admin(lambda desk: desk.mint.list_keys(by))`."""
        return await self._read(lambda: work(self._desk))

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def _write(self, entry: Checkpoint | Close) -> Any:
        # Shielded: a caller that is cancelled stops waiting, but what it asked to be written is written.
        outcome = asyncio.wrap_future(self._writer.submit(entry))
        outcome.add_done_callback(_look_at)
        return await asyncio.shield(outcome)

    def _undo(self, future: Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._writer.submit(Close(future.result().request_id, How.RELEASE))

    def _recall(self, identity: Identity, idempotency: Idempotency) -> SavedReply | None:
        place = (identity.key_id, idempotency.key)
        with self._desk.store.read() as connection:
            claim = find_claims(connection, [place], self._clock() - self._config.reply_kept_s).get(place)
        return None if claim is None else answer(claim, idempotency)

    def _limits(self, identity: Identity) -> LimitState:
        now = self._clock()
        with self._desk.store.read() as connection:
            rows = connection.execute(select(purses).where(purses.c.id.in_(identity.purse_ids))).all()
            windows = load_windows(connection, identity.purse_ids, now)
        return tightest((limits_of(row), windows[row.id]) for row in rows)


def _look_at(outcome: asyncio.Future[Any]) -> None:
    """The writer makes up for a failure that nobody waits for any more; asyncio need not complain of it."""
    if not outcome.cancelled():
        outcome.exception()


def pepper_path(store: Store, config: AccountsConfig) -> Path:
    if config.pepper_path is not None:
        return config.pepper_path
    if store.is_sqlite:
        return Path(f"{store.url.database}.pepper")
    raise QuicksilverError("with PostgreSQL, name a pepper file that all servers share", code="pepper_missing")


def _require_matching(store: Store, pepper: Pepper) -> None:
    """Refuse another database's pepper: with it every key would look unknown."""
    fingerprint = pepper.digest("fingerprint", b"")
    with store.write() as connection:
        row = {"name": "pepper", "value": fingerprint}
        connection.execute(upsert(connection, settings).values(row).on_conflict_do_nothing(index_elements=["name"]))
        known = connection.execute(select(settings.c.value).where(settings.c.name == "pepper")).scalar_one()
    if known != fingerprint:
        raise QuicksilverError("the pepper file belongs to another database", code="pepper_mismatch")
