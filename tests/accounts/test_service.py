"""`Accounts`: a request, a stream, cancellation, and errors that fail closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from quicksilver.accounts import ledger
from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.keys import make_secret
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.objects import put_objects
from quicksilver.accounts.records import (
    Gauge,
    KeyDraft,
    Limits,
    Order,
    SavedReply,
    State,
    StoredObject,
    StoredReply,
    UsageQuery,
)
from quicksilver.accounts.service import Accounts, AdminService, open_admin
from quicksilver.core import Usage
from quicksilver.errors import (
    AuthenticationFailed,
    Conflict,
    InsufficientQuota,
    LedgerUnavailable,
    NotFound,
    QuicksilverError,
)
from tests.accounts.conftest import START, Customer, FakeClock, make_customer
from tests.accounts.test_writer import locked


@pytest.fixture
async def accounts(url: str, config: AccountsConfig, clock: FakeClock) -> AsyncIterator[Accounts]:
    accounts = await Accounts.open(url, config, clock)
    yield accounts
    await accounts.close()


@pytest.fixture
async def someone(accounts: Accounts) -> Customer:
    return await accounts.admin(make_customer)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def in_flight(accounts: Accounts, customer: Customer) -> int:
    account = await accounts.admin(lambda admin: admin.organizations.get_account(OPERATOR, customer.org_id))
    return account.in_flight


async def test_plain_request_from_key_to_charge(accounts: Accounts, someone: Customer) -> None:
    identity = await accounts.authenticate(someone.secret)
    reservation = await accounts.reserve(identity, Order("r", "nano", 10, 20))
    assert reservation.amount == 2100
    charge = await accounts.settle("r", Usage(10, 0, 5))
    assert (charge.state, charge.cost) == (State.SETTLED, 600)
    assert await accounts.settle("r", Usage(10, 0, 5)) == charge
    day = int(START) // 86_400 * 86_400
    (bucket,) = await accounts.usage(identity, UsageQuery(day, day + 86_400))
    assert bucket.lines[0].cost == 600
    assert await accounts.admin(lambda admin: audit(admin.store)) == []


async def test_interrupted_stream_is_charged_for_its_last_checkpoint(
    accounts: Accounts, someone: Customer, url: str, config: AccountsConfig
) -> None:
    await accounts.reserve(someone.identity, Order("r", "nano", 10, 20))
    await accounts.checkpoint("r", 4)
    await accounts.checkpoint("r", 8, cached_tokens=0)
    await accounts.close()
    admin = open_admin(url, config)
    assert admin.organizations.get_account(OPERATOR, someone.org_id).spent == 10 * 10 + 8 * 100
    admin.store.close()


async def test_a_check_of_budgets_refuses_what_no_request_could_pass_and_reserves_nothing(
    accounts: Accounts, someone: Customer
) -> None:
    await accounts.check_budgets(someone.identity)

    def make(admin: AdminService) -> str:
        org = admin.organizations.create_org(OPERATOR, "poor", 0)
        project = admin.organizations.create_project(OPERATOR, org.id, "project")
        return admin.keys.create_key(OPERATOR, KeyDraft("key", project.id)).secret

    poor = await accounts.authenticate(await accounts.admin(make))
    with pytest.raises(InsufficientQuota):
        await accounts.check_budgets(poor)
    assert await in_flight(accounts, someone) == 0


async def test_released_request_costs_nothing(accounts: Accounts, someone: Customer) -> None:
    await accounts.reserve(someone.identity, Order("r", "nano", 10, 20))
    assert (await accounts.release("r")).state is State.RELEASED
    with pytest.raises(LedgerUnavailable):
        await accounts.settle("r", Usage(10, 0, 5))
    with pytest.raises(NotFound):
        await accounts.settle("never", Usage(1))


def stored_reply(owner: Customer, leased_by: str = "") -> StoredReply:
    return StoredReply(owner.project_id, (StoredObject("response", "resp_1", b"reply"),), leased_by)


async def test_a_reply_is_stored_with_its_charge(accounts: Accounts, someone: Customer) -> None:
    await accounts.reserve(someone.identity, Order("r", "nano", 10, 20))
    assert (await accounts.settle("r", Usage(10, 0, 5), None, stored_reply(someone))).cost == 600
    found = await accounts.stored(lambda store: store.get(someone.project_id, "response", "resp_1"))
    assert found is not None
    assert (found.body, found.is_open) == (b"reply", False)


async def test_a_reply_that_cannot_be_stored_is_not_charged(
    accounts: Accounts, someone: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_first(connection: Any, owner: str, stored: Any, now: float) -> None:
        put_objects(connection, owner, stored, now)
        raise RuntimeError("the process ends here")

    monkeypatch.setattr(ledger, "put_objects", put_first)
    await accounts.reserve(someone.identity, Order("r", "nano", 10, 20))
    with pytest.raises(RuntimeError):
        await accounts.settle("r", Usage(10, 0, 5), None, stored_reply(someone))
    assert await accounts.stored(lambda store: store.get(someone.project_id, "response", "resp_1")) is None
    assert await accounts.admin(lambda admin: admin.organizations.get_account(OPERATOR, someone.org_id).spent) == 0


async def test_a_reply_whose_lease_is_lost_is_neither_stored_nor_charged(accounts: Accounts, someone: Customer) -> None:
    opened = StoredObject("response", "resp_1", b"queued", is_open=True, leased_by="me", leased_until=1)
    await accounts.stored(lambda store: store.put(someone.project_id, [opened]))
    await accounts.reserve(someone.identity, Order("r", "nano", 10, 20))
    with pytest.raises(Conflict, match="cancelled or deleted"):
        await accounts.settle("r", Usage(10, 0, 5), None, stored_reply(someone, "another"))
    found = await accounts.stored(lambda store: store.get(someone.project_id, "response", "resp_1"))
    assert found == replace(opened, created_at=int(START))
    assert await in_flight(accounts, someone) == 1
    assert (await accounts.settle("r", Usage(10, 0, 5), None, stored_reply(someone, "me"))).cost == 600


async def test_bad_keys_are_refused(accounts: Accounts) -> None:
    for bearer in (None, "", make_secret(), "' OR '1'='1", "qs-" + "x" * 5000):
        with pytest.raises(AuthenticationFailed):
            await accounts.authenticate(bearer)


async def test_bootstrap_returns_a_key_once(accounts: Accounts) -> None:
    key = await accounts.bootstrap()
    assert key is not None
    assert (await accounts.authenticate(key.secret)).is_admin
    assert await accounts.bootstrap() is None


async def test_revocation_reaches_every_process_within_the_cache_time(
    accounts: Accounts, someone: Customer, url: str, config: AccountsConfig, clock: FakeClock
) -> None:
    assert AccountsConfig().auth_cache_s <= 0.5
    caching = await Accounts.open(url, replace(config, auth_cache_s=600.0), clock)
    identity = await caching.authenticate(someone.secret)
    await accounts.admin(lambda admin: admin.organizations.disable(OPERATOR, someone.key_id))
    assert await caching.authenticate(someone.secret) == identity
    with pytest.raises(AuthenticationFailed):
        await caching.reserve(identity, Order("r", "nano", 1, 1))
    assert not await caching.is_live(identity)
    with pytest.raises(AuthenticationFailed):
        await accounts.authenticate(someone.secret)
    await caching.close()


async def test_fifty_requests_with_one_idempotency_key_run_once(accounts: Accounts, someone: Customer) -> None:
    once = accounts.idempotency("key", b"POST /v1/chat {}")
    ran: list[str] = []

    async def attempt(number: int) -> bytes | None:
        try:
            saved = await accounts.recall(someone.identity, once)
            if saved is not None:
                return saved.body
            await accounts.reserve(someone.identity, Order(f"r{number}", "nano", 1, 1, once))
        except Conflict:
            return None
        ran.append(f"r{number}")
        await accounts.settle(f"r{number}", Usage(1, 0, 1), SavedReply(200, b"body"))
        return b"body"

    bodies = await asyncio.gather(*(attempt(number) for number in range(50)))
    assert len(ran) == 1
    assert set(bodies) <= {b"body", None}
    assert await accounts.recall(someone.identity, once) == SavedReply(200, b"body")
    account = await accounts.admin(lambda admin: admin.organizations.get_account(OPERATOR, someone.org_id))
    assert account.spent == 110


async def test_cancelled_reserve_leaves_nothing_reserved(accounts: Accounts, someone: Customer) -> None:
    admin = await accounts.admin(lambda admin: admin)
    with locked(admin):
        waiting = asyncio.create_task(accounts.reserve(someone.identity, Order("r", "nano", 1, 1)))
        await until(lambda: accounts._writer._queue.empty() and not waiting.done())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await accounts.reserve(someone.identity, Order("after", "nano", 1, 1))
    await accounts.release("after")
    await accounts.close()
    assert admin.organizations.get_account(OPERATOR, someone.org_id).in_flight == 0


async def test_cancelled_reserve_that_was_written_is_released(accounts: Accounts, someone: Customer) -> None:
    """The reservation is written before its caller is cancelled."""
    future = accounts._writer.submit
    answered = asyncio.Event()

    def submit_and_tell(entry: object) -> object:
        promise = future(entry)  # type: ignore[arg-type]
        promise.result(10.0)
        answered.set()
        return promise

    accounts._writer.submit = submit_and_tell  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(accounts.reserve(someone.identity, Order("r", "nano", 1, 1)))
    await answered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    accounts._writer.submit = future  # type: ignore[method-assign]
    assert await in_flight(accounts, someone) == 0


async def test_cancelled_settle_still_settles(accounts: Accounts, someone: Customer) -> None:
    await accounts.reserve(someone.identity, Order("r", "nano", 1, 1))
    task = asyncio.create_task(accounts.settle("r", Usage(1, 0, 1)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    charge = await accounts.release("r")
    assert charge.state is State.SETTLED


async def test_locked_database_refuses_paid_calls_and_recovers(accounts: Accounts, someone: Customer) -> None:
    admin = await accounts.admin(lambda admin: admin)
    with locked(admin):
        with pytest.raises(LedgerUnavailable) as caught:
            await accounts.reserve(someone.identity, Order("r1", "nano", 1, 1))
        assert caught.value.status == 503
    await accounts.reserve(someone.identity, Order("r2", "nano", 1, 1))
    assert not accounts.needs_restart


async def test_database_that_cannot_be_written_is_not_opened(
    accounts: Accounts, url: str, config: AccountsConfig
) -> None:
    with locked(await accounts.admin(lambda admin: admin)), pytest.raises(LedgerUnavailable):
        await Accounts.open(url, config)


async def test_limits_are_shown_before_and_after(accounts: Accounts) -> None:
    draft = KeyDraft("k", limits=Limits(requests=5, output_tokens=100))
    customer = await accounts.admin(lambda admin: make_customer(admin, draft=draft))
    state = await accounts.limits(customer.identity)
    assert state.requests == Gauge(5, 5, 0.0)
    assert state.input_tokens == Gauge()
    reservation = await accounts.reserve(customer.identity, Order("r", "nano", 1, 40))
    assert reservation.limits.output_tokens == Gauge(100, 60, 60.0)
    assert await accounts.limits(customer.identity) == reservation.limits


async def test_another_databases_pepper_is_refused(accounts: Accounts, url: str, config: AccountsConfig) -> None:
    assert config.pepper_path is not None
    with pytest.raises(QuicksilverError, match="another database"):
        await Accounts.open(url, replace(config, pepper_path=config.pepper_path.with_name("other")))


async def test_postgres_needs_a_named_pepper(postgres_url: str) -> None:
    with pytest.raises(QuicksilverError, match="needs a pepper file"):
        await Accounts.open(postgres_url, AccountsConfig())


async def test_sqlite_pepper_is_next_to_the_database(sqlite_url: str) -> None:
    accounts = await Accounts.open(sqlite_url)
    await accounts.close()
    admin = open_admin(sqlite_url, AccountsConfig())
    assert admin.store.url.database is not None
    admin.store.close()
    with open(f"{sqlite_url.removeprefix('sqlite:///')}.pepper", "rb") as file:
        assert len(file.read()) == 32
