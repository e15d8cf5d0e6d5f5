"""Idempotency keys: claimed with the reservation, resolved with the settlement."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from quicksilver.accounts.entries import Checkpoint, Close, HandOver, How, Reserve
from quicksilver.accounts.idempotency import find_claims, forget_old_replies, make_idempotency, saved_reply
from quicksilver.accounts.keys import Pepper
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.records import Charge, Idempotency, Order, Reservation, SavedReply, State
from quicksilver.accounts.schema import replies
from quicksilver.accounts.service import AdminService
from quicksilver.core import Usage
from quicksilver.errors import Conflict, IdempotencyMismatch, InsufficientQuota, InvalidRequest
from tests.accounts.conftest import Customer, FakeClock, apply, make_customer

PEPPER = Pepper(b"p" * 32)
ASKED = make_idempotency(PEPPER, "abc", b"POST /v1/chat {}")
REPLY = SavedReply(200, b'{"id": 1}')


def reserve(customer: Customer, request_id: str, idempotency: Idempotency = ASKED, max_output: int = 1) -> Reserve:
    return Reserve(customer.identity, Order(request_id, "nano", 1, max_output, idempotency))


def recall(
    admin: AdminService, customer: Customer, idempotency: Idempotency = ASKED, since: float = 0.0
) -> SavedReply | None:
    place = (customer.key_id, idempotency.key)
    with admin.store.read() as connection:
        claim = find_claims(connection, [place], since).get(place)
    return None if claim is None else saved_reply(claim, idempotency)


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "a\x00b", "naïve"])
def test_invalid_idempotency_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="255"):
        make_idempotency(PEPPER, key, b"")
    assert make_idempotency(PEPPER, "x" * 255, b"").key == "x" * 255


def test_second_request_conflicts_and_later_gets_the_same_reply(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    assert recall(admin, customer) is None
    first, second = apply(admin, books, reserve(customer, "r1"), reserve(customer, "r2"))
    assert isinstance(first, Reservation)
    assert isinstance(second, Conflict)
    with pytest.raises(Conflict, match="still running"):
        recall(admin, customer)
    (third,) = apply(admin, books, reserve(customer, "r3"))
    assert isinstance(third, Conflict)
    apply(admin, books, Close("r1", How.SETTLE, Usage(1, 0, 1), REPLY))
    assert recall(admin, customer) == REPLY
    (late,) = apply(admin, books, reserve(customer, "r4"))
    assert isinstance(late, Conflict)


def test_another_body_is_a_mismatch_during_and_after_the_request(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    other = make_idempotency(PEPPER, "abc", b"POST /v1/chat {1}")
    apply(admin, books, reserve(customer, "r1"))
    with pytest.raises(IdempotencyMismatch):
        recall(admin, customer, other)
    (refused,) = apply(admin, books, reserve(customer, "r2", other))
    assert isinstance(refused, IdempotencyMismatch)
    apply(admin, books, Close("r1", How.SETTLE, Usage(1, 0, 1), REPLY))
    with pytest.raises(IdempotencyMismatch):
        recall(admin, customer, other)


@pytest.mark.parametrize(
    "ending", [Close("r1", How.RELEASE), Close("r1", How.ORPHAN), Close("r1", How.SETTLE, Usage(1, 0, 1))]
)
def test_released_request_leaves_its_idempotency_key_free(
    admin: AdminService, books: Ledger, customer: Customer, ending: Close
) -> None:
    apply(admin, books, reserve(customer, "r1"))
    apply(admin, books, ending)
    assert recall(admin, customer) is None
    assert isinstance(apply(admin, books, reserve(customer, "r2"))[0], Reservation)


def test_a_request_that_is_repeated_after_its_process_died_is_charged_once(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    apply(admin, books, reserve(customer, "r1"), Checkpoint("r1", 1))
    (orphan,) = apply(admin, books, Close("r1", How.ORPHAN, checkpoint=Checkpoint("r1", 1)))
    assert orphan == Charge("r1", State.RELEASED, 0, Usage())
    (again,) = apply(admin, books, reserve(customer, "r2"), Close("r2", How.SETTLE, Usage(1, 0, 1), REPLY))[1:]
    assert isinstance(again, Charge)
    assert again.state is State.SETTLED
    assert recall(admin, customer) == REPLY


def test_refused_request_leaves_no_claim(admin: AdminService, books: Ledger, customer: Customer) -> None:
    (refused,) = apply(admin, books, reserve(customer, "r1", max_output=10**9))
    assert isinstance(refused, InsufficientQuota)
    assert recall(admin, customer) is None


def test_idempotency_keys_belong_to_one_api_key(admin: AdminService, books: Ledger, customer: Customer) -> None:
    other = make_customer(admin)
    apply(admin, books, reserve(customer, "r1"), Close("r1", How.SETTLE, Usage(1, 0, 1), REPLY))
    assert recall(admin, other) is None
    assert isinstance(apply(admin, books, reserve(other, "r2"))[0], Reservation)


def test_reply_is_deleted_after_a_day(admin: AdminService, books: Ledger, customer: Customer, clock: FakeClock) -> None:
    apply(admin, books, reserve(customer, "r1"), Close("r1", How.SETTLE, Usage(1, 0, 1), REPLY))
    clock.now += books.reply_kept_s
    assert recall(admin, customer, since=clock.now - books.reply_kept_s) is None
    assert isinstance(apply(admin, books, reserve(customer, "r2"))[0], Reservation)
    with admin.store.write() as connection:
        forget_old_replies(connection, clock.now)
        kept = connection.execute(select(replies.c.request_id)).scalars().all()
    assert kept == ["r2"]
    with admin.store.write() as connection:
        forget_old_replies(connection, clock.now + 10**6)
        assert connection.execute(select(replies.c.request_id)).scalars().all() == ["r2"]


@pytest.mark.parametrize("ending", [How.SETTLE, How.RELEASE])
def test_a_claim_passes_to_the_next_row_of_its_request(
    admin: AdminService, books: Ledger, customer: Customer, ending: How
) -> None:
    apply(admin, books, reserve(customer, "r1"))
    apply(admin, books, HandOver(Close("r1", How.SETTLE, Usage(1, 0, 1)), reserve(customer, "r2")))
    with pytest.raises(Conflict, match="still running"):
        recall(admin, customer)
    assert isinstance(apply(admin, books, reserve(customer, "r3"))[0], Conflict)
    apply(admin, books, Close("r2", ending, Usage(1, 0, 1), REPLY))
    assert recall(admin, customer) == REPLY


def test_a_claim_that_was_passed_on_is_free_after_a_failure(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    apply(admin, books, reserve(customer, "r1"), HandOver(Close("r1", How.RELEASE), reserve(customer, "r2")))
    apply(admin, books, Close("r2", How.ORPHAN))
    assert recall(admin, customer) is None
