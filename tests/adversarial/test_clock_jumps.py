"""A wall clock that jumps ahead or is set back: ledger, rate limits, budgets, keys and saved replies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Checkpoint, Close, How, Reserve
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.key_lookup import KeyLookup
from quicksilver.accounts.ledger import Ledger, Outcome
from quicksilver.accounts.limits import forget_old_windows
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import Charge, Idempotency, KeyDraft, Limits, Order, Price, Reservation, State
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.core import Usage
from quicksilver.errors import AuthenticationFailed, Conflict, InsufficientQuota, RateLimited
from tests.accounts.conftest import Customer, FakeClock, apply, make_customer

HOUR, DAY, YEAR = 3_600, 86_400, 365 * 86_400
JUMPS = [-10 * YEAR, -DAY, -90, -30, -1, 30, 90, DAY, 10 * YEAR]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def admin(tmp_path: Path, clock: FakeClock) -> Iterator[AdminService]:
    config = AccountsConfig(tmp_path / "pepper", default_price=Price(10, 1, 100), key_limits=Limits())
    admin = open_admin(f"sqlite:///{tmp_path}/accounts.db", config, clock)
    yield admin
    admin.store.close()


@pytest.fixture
def customer(admin: AdminService) -> Customer:
    return make_customer(admin)


@pytest.fixture
def ledger(clock: FakeClock) -> Ledger:
    return Ledger("proc", Price(10, 1, 100), DAY, clock)


def reserve(customer: Customer, request_id: str, idempotency: Idempotency | None = None) -> Reserve:
    return Reserve(customer.identity, Order(request_id, "nano", 10, 20, idempotency))


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("how", list(How))
def test_a_jump_between_reserve_and_close_changes_no_charge(
    admin: AdminService, ledger: Ledger, customer: Customer, clock: FakeClock, jump: int, how: How
) -> None:
    apply(admin, ledger, reserve(customer, "r"), Checkpoint("r", 5))
    clock.now += jump
    (charge,) = apply(admin, ledger, Close("r", how, Usage(10, 0, 20)))
    assert isinstance(charge, Charge)
    assert charge.cost == {How.SETTLE: 2_100, How.RELEASE: 0, How.ORPHAN: 10 + 500}[how]
    assert charge.state is (State.RELEASED if how is How.RELEASE else State.SETTLED)
    assert audit(admin.store) == []


@pytest.mark.parametrize("jump", JUMPS)
def test_a_rate_limit_never_waits_longer_than_its_window(
    admin: AdminService, ledger: Ledger, customer: Customer, clock: FakeClock, jump: int
) -> None:
    admin.organizations.set_limits(OPERATOR, customer.key_id, Limits(requests=1))
    assert isinstance(apply(admin, ledger, reserve(customer, "a"))[0], Reservation)
    clock.now += jump
    (outcome,) = apply(admin, ledger, reserve(customer, "b"))
    if isinstance(outcome, RateLimited):
        assert outcome.retry_after_s <= 60
        clock.now += max(0.0, -jump if abs(jump) <= 60 else 0.0) + 60
        (outcome,) = apply(admin, ledger, reserve(customer, "c"))
    assert isinstance(outcome, Reservation)


def test_buckets_that_a_jump_left_in_the_future_are_deleted(
    admin: AdminService, ledger: Ledger, customer: Customer, clock: FakeClock
) -> None:
    admin.organizations.set_limits(OPERATOR, customer.key_id, Limits(requests=1))
    clock.now += YEAR
    apply(admin, ledger, reserve(customer, "a"))
    clock.now -= YEAR
    with admin.store.write() as connection:
        forget_old_windows(connection, clock.now)
    clock.now += YEAR
    assert isinstance(apply(admin, ledger, reserve(customer, "b"))[0], Reservation)


@pytest.mark.parametrize("period", ["day", "month"])
def test_a_budget_is_renewed_in_time_after_the_clock_was_far_ahead(
    admin: AdminService, ledger: Ledger, customer: Customer, clock: FakeClock, period: str
) -> None:
    admin.organizations.set_budget(OPERATOR, customer.project_id, 2_100, period)
    clock.now += 10 * YEAR
    spend(admin, ledger, customer, "ahead")
    clock.now -= 10 * YEAR
    assert isinstance(spend(admin, ledger, customer, "back"), InsufficientQuota)
    clock.now += 31 * DAY
    assert isinstance(spend(admin, ledger, customer, "next period"), Charge)
    assert audit(admin.store) == []


def test_clock_skew_at_the_end_of_a_period_renews_a_budget_once(
    admin: AdminService, ledger: Ledger, customer: Customer, clock: FakeClock
) -> None:
    """Two processes, one of them two seconds ahead, on both sides of midnight."""
    admin.organizations.set_budget(OPERATOR, customer.project_id, 2_100, "day")
    midnight = (int(clock.now) // DAY + 1) * DAY
    outcomes: list[Outcome] = []
    for number in range(6):
        clock.now = midnight + (1 if number % 2 == 0 else -1)
        outcomes.append(spend(admin, ledger, customer, f"r{number}"))
    assert [isinstance(outcome, Charge) for outcome in outcomes] == [True] + [False] * 5


def test_expiry_follows_the_clock_and_the_cache_does_not(admin: AdminService, clock: FakeClock) -> None:
    customer = make_customer(admin, draft=KeyDraft("key", expires_at=int(clock.now) + HOUR))
    lookup = KeyLookup(admin.store, admin.pepper, 60.0, clock)
    digest = lookup.digest(customer.secret)
    assert lookup.look_up(digest).key_id == customer.key_id
    clock.now += 2 * HOUR
    assert lookup.cached(digest) is None
    with pytest.raises(AuthenticationFailed):
        lookup.look_up(digest)
    clock.now -= 4 * HOUR
    assert lookup.look_up(digest).key_id == customer.key_id
    admin.organizations.disable(OPERATOR, customer.key_id)
    with pytest.raises(AuthenticationFailed):
        lookup.look_up(digest)


@pytest.mark.parametrize("jump", [-YEAR, -DAY, -1, HOUR])
def test_a_running_request_keeps_its_idempotency_key(
    admin: AdminService, ledger: Ledger, customer: Customer, clock: FakeClock, jump: int
) -> None:
    key = Idempotency("key", "digest")
    apply(admin, ledger, reserve(customer, "a", key))
    clock.now += jump
    assert isinstance(apply(admin, ledger, reserve(customer, "b", key))[0], Conflict)


def test_a_jump_past_the_lifetime_of_a_claim_leaves_the_ledger_consistent(
    admin: AdminService, ledger: Ledger, customer: Customer, clock: FakeClock
) -> None:
    key = Idempotency("key", "digest")
    apply(admin, ledger, reserve(customer, "a", key))
    clock.now += 2 * DAY
    apply(admin, ledger, reserve(customer, "b", replace(key)))
    charges = apply(admin, ledger, *(Close(name, How.SETTLE, Usage(10, 0, 20)) for name in "ab"))
    assert [charge.cost for charge in charges if isinstance(charge, Charge)] == [2_100, 2_100]
    assert audit(admin.store) == []


def spend(admin: AdminService, ledger: Ledger, customer: Customer, request_id: str) -> Outcome:
    """Reserves and settles the whole daily or monthly budget."""
    (outcome,) = apply(admin, ledger, reserve(customer, request_id))
    if isinstance(outcome, Reservation):
        (outcome,) = apply(admin, ledger, Close(request_id, How.SETTLE, Usage(10, 0, 20)))
    return outcome
