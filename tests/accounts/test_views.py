"""What lists show: purses on a path, keys with their last hour and owner, usage filtered by every id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.accounts import key_minting as minting
from quicksilver.accounts.entries import Close, How, Reserve
from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.records import Order
from quicksilver.accounts.service import Desk
from quicksilver.accounts.usage import read_usage
from quicksilver.accounts.views import KeyDraft, UsageQuery
from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest, NotFound, PermissionDenied
from tests.accounts.conftest import START, Customer, FakeClock, apply, make_customer

DAY = int(START) // 86_400 * 86_400
TODAY = UsageQuery(DAY, DAY + 86_400)


def spend(desk: Desk, books: Ledger, customer: Customer, request_id: str) -> None:
    order = Order(request_id, "nano", 10, 10)
    apply(desk, books, Reserve(customer.identity, order), Close(request_id, How.SETTLE, Usage(10, 4, 2)))


def test_a_key_lists_the_purses_that_pay_for_it(desk: Desk, customer: Customer) -> None:
    make_customer(desk)
    assert [purse.id for purse in desk.directory.list_path(customer.identity)] == [
        customer.org_id,
        customer.project_id,
        customer.key_id,
    ]


def test_a_budget_is_whole_again_when_its_period_ends_without_a_request(
    desk: Desk, books: Ledger, customer: Customer, clock: FakeClock
) -> None:
    desk.directory.set_budget(OPERATOR, customer.key_id, 10_000, "day")
    spend(desk, books, customer, "r1")
    purse = desk.directory.get_purse(OPERATOR, customer.key_id)
    assert purse.balance_at(clock.now) == purse.balance == 10_000 - purse.spent < 10_000
    assert purse.balance_at(clock.now + 86_400) == 10_000
    assert desk.directory.get_purse(OPERATOR, customer.org_id).balance_at(clock.now + 86_400) == 10**6 - purse.spent


def test_a_key_is_shown_with_its_owner_and_its_last_hour(desk: Desk, books: Ledger, customer: Customer) -> None:
    user = desk.directory.create_user(OPERATOR, customer.org_id, "ada@example.org")
    key = desk.mint.create_key(OPERATOR, KeyDraft("hers", customer.project_id, user_id=user.id))
    assert desk.mint.get_key(OPERATOR, key.id).user == user == desk.directory.get_user(OPERATOR, user.id)
    assert desk.mint.get_key(OPERATOR, key.id).last_used_at is None
    spend(desk, books, customer, "r1")
    assert desk.mint.get_key(OPERATOR, customer.key_id).last_used_at == int(START) // 3600 * 3600
    with pytest.raises(NotFound):
        desk.mint.get_key(OPERATOR, customer.project_id)
    with pytest.raises(NotFound):
        desk.directory.get_user(OPERATOR, "user_x")


def test_users_are_listed_for_one_organisation_or_all(desk: Desk, customer: Customer) -> None:
    other = make_customer(desk)
    for org_id in (customer.org_id, other.org_id):
        desk.directory.create_user(OPERATOR, org_id, "ada@example.org")
    assert len(desk.directory.list_users(OPERATOR)) == 2
    assert [user.org_id for user in desk.directory.list_users(OPERATOR, other.org_id)] == [other.org_id]


def test_only_admins_rename(desk: Desk, customer: Customer) -> None:
    desk.directory.rename(OPERATOR, customer.project_id, "research")
    assert desk.directory.get_purse(OPERATOR, customer.project_id).name == "research"
    with pytest.raises(PermissionDenied):
        desk.directory.rename(customer.identity, customer.key_id, "mine")
    with pytest.raises(InvalidRequest):
        desk.directory.rename(OPERATOR, customer.project_id, " ")


def test_a_key_can_only_make_so_many(desk: Desk, customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minting, "MAX_BELOW", 2)
    for number in range(2):
        made = desk.mint.create_key(customer.identity, KeyDraft(f"k{number}"))
        desk.directory.disable(customer.identity, made.id)
    with pytest.raises(PermissionDenied, match="limit"):
        desk.mint.create_key(customer.identity, KeyDraft("one too many"))
    assert desk.mint.create_key(OPERATOR, KeyDraft("by an operator", customer.project_id))


def test_usage_is_filtered_by_key_project_and_user(desk: Desk, books: Ledger, customer: Customer) -> None:
    other = make_customer(desk)
    spend(desk, books, customer, "r1")
    spend(desk, books, other, "r2")
    for name, wanted in (("key_ids", other.key_id), ("project_ids", other.project_id)):
        (bucket,) = read_usage(desk.store, OPERATOR, replace(TODAY, group_by=("key",), **{name: (wanted,)}))
        assert [line.key_id for line in bucket.lines] == [other.key_id]
    for name, wanted in (("user_ids", "user_x"), ("project_ids", "%"), ("project_ids", "_"), ("models", "x")):
        (bucket,) = read_usage(desk.store, OPERATOR, replace(TODAY, **{name: (wanted,)}))
        assert bucket.lines == ()


def test_an_admin_as_tenant_has_no_power_over_others(desk: Desk, customer: Customer) -> None:
    tenant = replace(customer.identity, scopes=frozenset(Scope)).as_tenant
    assert not tenant.is_admin
    assert tenant.scopes == frozenset(Scope) - {Scope.ADMIN}
    stranger = make_customer(desk)
    with pytest.raises(NotFound):
        desk.directory.get_purse(tenant, stranger.key_id)
