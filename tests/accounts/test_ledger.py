"""Reserve, checkpoint, settle and release, and everything that changes with them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from quicksilver.accounts.entries import Checkpoint, Close, HandOver, How, Reserve
from quicksilver.accounts.identity import OPERATOR, Identity
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import Charge, KeyDraft, Limits, Order, Price, Reservation, State
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import AdminService
from quicksilver.core import Usage
from quicksilver.errors import (
    AuthenticationFailed,
    Conflict,
    InsufficientQuota,
    LedgerUnavailable,
    NotFound,
    PermissionDenied,
    RateLimited,
    TooManyInFlight,
)
from tests.accounts.conftest import START, Customer, FakeClock, apply, make_customer

SETTLE = How.SETTLE


def reserve(customer: Customer, request_id: str, max_input: int = 10, max_output: int = 20) -> Reserve:
    return Reserve(customer.identity, Order(request_id, "nano", max_input, max_output))


def row(admin: AdminService, request_id: str) -> Any:
    with admin.store.read() as connection:
        return connection.execute(select(ledger).where(ledger.c.request_id == request_id)).one()


def money(admin: AdminService, account_id: str) -> tuple[int, int, int]:
    account = admin.organizations.get_account(OPERATOR, account_id)
    return account.spent, account.reserved, account.in_flight


def test_reserve_holds_the_highest_cost_and_settle_charges_the_usage(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    (reserved,) = apply(admin, books, reserve(customer, "r1"))
    assert isinstance(reserved, Reservation)
    assert reserved.amount == 10 * 10 + 20 * 100
    for account_id in customer.identity.account_ids:
        assert money(admin, account_id) == (0, 2100, 1)
    (charge,) = apply(admin, books, Close("r1", SETTLE, Usage(10, 4, 7)))
    assert charge == Charge("r1", State.SETTLED, 6 * 10 + 4 * 1 + 7 * 100, Usage(10, 4, 7))
    for account_id in customer.identity.account_ids:
        assert money(admin, account_id) == (764, 0, 0)
    assert audit(admin.store) == []


def test_settling_twice_charges_once(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1"))
    first = apply(admin, books, Close("r1", SETTLE, Usage(10, 0, 7)))
    again = apply(admin, books, Close("r1", SETTLE, Usage(10, 0, 9)), Close("r1", SETTLE, Usage(10, 0, 7)))
    assert again == first * 2
    assert money(admin, customer.org_id) == (800, 0, 0)


def test_release_charges_nothing_and_is_final(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1"))
    (charge,) = apply(admin, books, Close("r1", How.RELEASE))
    assert charge == Charge("r1", State.RELEASED, 0, Usage())
    (late,) = apply(admin, books, Close("r1", SETTLE, Usage(10, 0, 5)))
    assert isinstance(late, LedgerUnavailable)
    assert money(admin, customer.key_id) == (0, 0, 0)


def test_release_after_settling_changes_nothing(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(
        admin,
        books,
        reserve(customer, "r1"),
    )
    first, second = apply(admin, books, Close("r1", SETTLE, Usage(10, 0, 1)), Close("r1", How.RELEASE))
    assert first == second
    assert money(admin, customer.org_id)[0] == 200


def test_repeated_request_id_is_a_conflict(admin: AdminService, books: Ledger, customer: Customer) -> None:
    first, second = apply(admin, books, reserve(customer, "r1"), reserve(customer, "r1"))
    assert isinstance(first, Reservation)
    assert isinstance(second, Conflict)
    with pytest.raises(Conflict):
        apply(admin, books, reserve(customer, "r1"))
    assert money(admin, customer.org_id) == (0, 2100, 1)


def test_settling_without_a_reservation_is_not_found(admin: AdminService, books: Ledger) -> None:
    settled, released, orphaned = apply(
        admin, books, Close("none", SETTLE, Usage(1)), Close("none", How.RELEASE), Close("none", How.ORPHAN)
    )
    assert isinstance(settled, NotFound)
    assert released == orphaned == Charge("none", State.RELEASED, 0, Usage())


def test_charge_never_exceeds_the_reservation(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1", 10, 20))
    (charge,) = apply(admin, books, Close("r1", SETTLE, Usage(11, -3, 21)))
    assert charge == Charge("r1", State.SETTLED, 2100, Usage(10, 0, 20))


def test_orphan_without_checkpoint_is_released(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1"))
    (charge,) = apply(admin, books, Close("r1", How.ORPHAN))
    assert isinstance(charge, Charge)
    assert charge.state is State.RELEASED
    assert row(admin, "r1").closed_by == "sweep"


def test_orphan_is_charged_for_its_last_checkpoint(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1"), reserve(customer, "r2"))
    apply(admin, books, Checkpoint("r1", 8), Checkpoint("r2", 8, cached_tokens=3), Checkpoint("r1", 4))
    unknown, known = apply(admin, books, Close("r1", How.ORPHAN), Close("r2", How.ORPHAN))
    assert unknown == Charge("r1", State.SETTLED, 10 * 1 + 8 * 100, Usage(10, 10, 8))
    assert known == Charge("r2", State.SETTLED, 7 * 10 + 3 * 1 + 8 * 100, Usage(10, 3, 8))


def test_orphan_uses_a_checkpoint_that_could_not_be_written(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    apply(admin, books, reserve(customer, "r1"))
    (charge,) = apply(admin, books, Close("r1", How.ORPHAN, checkpoint=Checkpoint("r1", 5)))
    assert isinstance(charge, Charge)
    assert charge.usage.completion_tokens == 5


def test_closed_orphan_accepts_neither_checkpoint_nor_settle(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    apply(admin, books, reserve(customer, "r1"), Checkpoint("r1", 5))
    apply(admin, books, Close("r1", How.ORPHAN))
    outcomes = apply(admin, books, Checkpoint("r1", 6), Close("r1", SETTLE, Usage(10, 0, 9)), Checkpoint("none", 1))
    assert [type(outcome) for outcome in outcomes] == [LedgerUnavailable] * 3
    assert row(admin, "r1").output_tokens == 5


def test_budget_for_ten_requests_admits_ten(admin: AdminService, books: Ledger, customer: Customer) -> None:
    admin.organizations.set_budget(OPERATOR, customer.key_id, 21_000)
    outcomes = apply(admin, books, *(reserve(customer, f"r{number}") for number in range(25)))
    assert [type(outcome) for outcome in outcomes] == [Reservation] * 10 + [RateLimited] * 15
    apply(admin, books, *(Close(f"r{number}", SETTLE, Usage(10, 0, 20)) for number in range(10)))
    (refused,) = apply(admin, books, reserve(customer, "late"))
    assert isinstance(refused, InsufficientQuota)


def test_key_made_with_a_key_spends_the_budget_of_both(admin: AdminService, books: Ledger, customer: Customer) -> None:
    admin.organizations.set_budget(OPERATOR, customer.key_id, 2_100 * 3)
    children = [admin.keys.create_key(customer.identity, KeyDraft(f"child {n}")) for n in range(5)]
    entries = [
        Reserve(
            Identity(child.id, f"{customer.identity.path}/{child.id}", customer.identity.scopes),
            Order(child.id, "nano", 10, 20),
        )
        for child in children
    ]
    outcomes = apply(admin, books, *entries)
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 3
    assert audit(admin.store) == []


def test_monthly_budget_is_renewed_next_month(
    admin: AdminService, books: Ledger, customer: Customer, clock: FakeClock
) -> None:
    admin.organizations.set_budget(OPERATOR, customer.project_id, 2_100, "month")
    apply(admin, books, reserve(customer, "r1"))
    apply(admin, books, Close("r1", SETTLE, Usage(10, 0, 20)))
    assert isinstance(apply(admin, books, reserve(customer, "r2"))[0], InsufficientQuota)
    clock.now += 31 * 86_400
    assert isinstance(apply(admin, books, reserve(customer, "r3"))[0], Reservation)
    assert audit(admin.store) == []


def test_revoked_expired_and_foreign_models_are_refused_inside_the_transaction(
    admin: AdminService, books: Ledger, clock: FakeClock
) -> None:
    one = make_customer(admin, draft=KeyDraft("k", models=frozenset({"other"})))
    two = make_customer(admin, draft=KeyDraft("k", expires_at=int(START) + 5))
    three = make_customer(admin)
    clock.now += 5
    admin.organizations.disable(OPERATOR, three.project_id)
    unknown = Reserve(Identity("x", "a/b/x", frozenset()), Order("r4", "nano", 1, 1))
    outcomes = apply(admin, books, reserve(one, "r1"), reserve(two, "r2"), reserve(three, "r3"), unknown)
    wanted = [PermissionDenied, AuthenticationFailed, AuthenticationFailed, AuthenticationFailed]
    assert [type(outcome) for outcome in outcomes] == wanted


def test_reservation_keeps_its_price(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1"))
    admin.organizations.set_price(OPERATOR, "nano", Price(1, 0, 1))
    settled, reserved = apply(admin, books, Close("r1", SETTLE, Usage(10, 0, 20)), reserve(customer, "r2"))
    assert isinstance(settled, Charge)
    assert settled.cost == 2100
    assert isinstance(reserved, Reservation)
    assert reserved.amount == 30
    assert admin.organizations.list_prices() == {"nano": Price(1, 0, 1)}


def test_rates_count_the_reservation_and_then_the_usage(
    admin: AdminService, books: Ledger, customer: Customer, clock: FakeClock
) -> None:
    admin.organizations.set_limits(OPERATOR, customer.key_id, Limits(requests=3, output_tokens=50))
    _, second, third = apply(admin, books, *(reserve(customer, f"r{number}") for number in range(3)))
    assert isinstance(second, Reservation)
    assert second.limits.output_tokens.remaining == 10
    assert second.limits.requests.remaining == 1
    assert isinstance(third, RateLimited)
    clock.now += 10
    _, again = apply(admin, books, Close("r0", SETTLE, Usage(10, 0, 5)), reserve(customer, "r3"))
    assert isinstance(again, Reservation)
    assert again.limits.output_tokens.remaining == 50 - 5 - 20 - 20
    (fourth,) = apply(admin, books, reserve(customer, "r4", 1, 1))
    assert isinstance(fourth, RateLimited)
    assert fourth.retry_after_s == 50.0
    clock.now += 50
    assert isinstance(apply(admin, books, reserve(customer, "r5", 1, 1))[0], Reservation)


def test_concurrency_cap_frees_as_requests_end(admin: AdminService, books: Ledger, customer: Customer) -> None:
    admin.organizations.set_limits(OPERATOR, customer.key_id, Limits(concurrency=2))
    outcomes = apply(
        admin, books, reserve(customer, "r1"), reserve(customer, "r2"), reserve(customer, "r3"),
        Close("r1", How.RELEASE), reserve(customer, "r4"),
    )  # fmt: skip
    assert [type(outcome) for outcome in outcomes] == [Reservation, Reservation, TooManyInFlight, Charge, Reservation]


def test_database_constraint_refuses_a_negative_balance(admin: AdminService, customer: Customer) -> None:
    change = text("UPDATE accounts SET spent = allowance + 1 WHERE id = :id")
    with pytest.raises(Conflict), admin.store.write() as connection:
        connection.execute(change, {"id": customer.org_id})


def test_ledger_order_is_the_sequence_and_not_the_clock(
    admin: AdminService, books: Ledger, customer: Customer, clock: FakeClock
) -> None:
    apply(admin, books, reserve(customer, "first"))
    clock.now -= 86_400
    apply(admin, books, reserve(customer, "second"))
    assert row(admin, "first").seq < row(admin, "second").seq
    assert row(admin, "first").created_at > row(admin, "second").created_at


steps = st.lists(
    st.tuples(st.sampled_from(["reserve", "checkpoint", "settle", "release", "orphan"]), st.integers(0, 5),
              st.integers(0, 25)),
    max_size=40,
)  # fmt: skip


def _entry(customer: Customer, what: str, request_id: str, amount: int) -> Any:
    if what == "reserve":
        return reserve(customer, request_id, amount, amount)
    if what == "checkpoint":
        return Checkpoint(request_id, amount)
    return Close(request_id, How(what), Usage(amount, amount // 2, amount))


@given(script=steps, cuts=st.integers(1, 7))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_ledger_is_consistent_after_any_script_in_any_batches(
    admin: AdminService, books: Ledger, script: list[tuple[str, int, int]], cuts: int
) -> None:
    customer = make_customer(admin)
    entries, reserved = [], set()
    for what, number, amount in script:
        if what != "reserve" or number not in reserved:  # a server never uses an id twice
            entries.append(_entry(customer, what, f"{customer.key_id}-{number}", amount))
        reserved |= {number} if what == "reserve" else set()
    for start in range(0, len(entries), cuts):
        apply(admin, books, *entries[start : start + cuts])
    assert audit(admin.store) == []
    assert all(value >= 0 for value in money(admin, customer.org_id))


def hand_over(customer: Customer, old: str, new: str, usage: Usage | None, price: Price | None = None) -> HandOver:
    close = Close(old, How.RELEASE if usage is None else SETTLE, usage or Usage())
    return HandOver(close, Reserve(customer.identity, Order(new, "strong", 10, 20, price=price)))


def test_hand_over_settles_one_row_and_opens_the_next_at_its_own_price(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    apply(admin, books, reserve(customer, "r1"))
    (reserved,) = apply(admin, books, hand_over(customer, "r1", "r2", Usage(10, 0, 3), Price(7, 5, 9)))
    assert isinstance(reserved, Reservation)
    assert (reserved.request_id, reserved.amount) == ("r2", 10 * 7 + 20 * 9)
    assert money(admin, customer.key_id) == (10 * 10 + 3 * 100, 250, 1)
    apply(admin, books, Close("r2", SETTLE, Usage(10, 2, 4)))
    assert (row(admin, "r1").cost, row(admin, "r2").cost) == (400, 8 * 7 + 2 * 5 + 4 * 9)
    assert money(admin, customer.key_id) == (400 + 102, 0, 0)
    assert audit(admin.store) == []


def test_hand_over_without_usage_releases_the_first_row(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1"))
    apply(admin, books, hand_over(customer, "r1", "r2", None))
    assert (row(admin, "r1").state, row(admin, "r2").state) == (State.RELEASED, State.OPEN)
    assert money(admin, customer.key_id) == (0, 2100, 1)


def test_hand_over_keeps_the_place_in_flight(admin: AdminService, books: Ledger, customer: Customer) -> None:
    admin.organizations.set_limits(OPERATOR, customer.key_id, Limits(concurrency=1))
    apply(admin, books, reserve(customer, "r1"))
    refused, reserved = apply(admin, books, reserve(customer, "x"), hand_over(customer, "r1", "r2", Usage(1, 0, 1)))
    assert isinstance(refused, TooManyInFlight)
    assert isinstance(reserved, Reservation)
    assert money(admin, customer.key_id)[2] == 1


def test_a_refused_hand_over_changes_nothing(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1"))
    before = money(admin, customer.org_id)
    (refused,) = apply(admin, books, hand_over(customer, "r1", "r2", Usage(10, 0, 3), Price(10**8, 0, 10**8)))
    assert isinstance(refused, InsufficientQuota)
    assert money(admin, customer.org_id) == before
    assert row(admin, "r1").state == State.OPEN
    (charge,) = apply(admin, books, Close("r1", SETTLE, Usage(10, 0, 3)))
    assert isinstance(charge, Charge)
    assert audit(admin.store) == []


def test_a_closed_row_cannot_be_handed_over(admin: AdminService, books: Ledger, customer: Customer) -> None:
    apply(admin, books, reserve(customer, "r1"), Close("r1", How.RELEASE))
    closed, missing = apply(
        admin, books, hand_over(customer, "r1", "r2", None), hand_over(customer, "none", "r3", None)
    )
    assert isinstance(closed, LedgerUnavailable)
    assert isinstance(missing, LedgerUnavailable)
    assert money(admin, customer.key_id) == (0, 0, 0)
