"""Lists: accounts of a path, keys with owner and last use, filtered usage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.accounts import api_keys as minting
from quicksilver.accounts.entries import Close, How, Reserve
from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.records import KeyDraft, Order, UsageQuery
from quicksilver.accounts.service import AdminService
from quicksilver.accounts.usage import read_usage
from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest, NotFound, PermissionDenied
from tests.accounts.conftest import START, Customer, FakeClock, apply, make_customer

DAY = int(START) // 86_400 * 86_400
TODAY = UsageQuery(DAY, DAY + 86_400)


def spend(admin: AdminService, books: Ledger, customer: Customer, request_id: str) -> None:
    order = Order(request_id, "nano", 10, 10)
    apply(admin, books, Reserve(customer.identity, order), Close(request_id, How.SETTLE, Usage(10, 4, 2)))


def test_a_key_lists_the_accounts_of_its_path(admin: AdminService, customer: Customer) -> None:
    make_customer(admin)
    assert [account.id for account in admin.organizations.list_path(customer.identity)] == [
        customer.org_id,
        customer.project_id,
        customer.key_id,
    ]


def test_a_budget_is_renewed_without_a_request(
    admin: AdminService, books: Ledger, customer: Customer, clock: FakeClock
) -> None:
    admin.organizations.set_budget(OPERATOR, customer.key_id, 10_000, "day")
    spend(admin, books, customer, "r1")
    account = admin.organizations.get_account(OPERATOR, customer.key_id)
    assert account.balance_at(clock.now) == account.balance == 10_000 - account.spent < 10_000
    assert account.balance_at(clock.now + 86_400) == 10_000
    assert (
        admin.organizations.get_account(OPERATOR, customer.org_id).balance_at(clock.now + 86_400)
        == 10**6 - account.spent
    )


def test_a_key_is_shown_with_its_owner_and_its_last_hour(
    admin: AdminService, books: Ledger, customer: Customer
) -> None:
    user = admin.organizations.create_user(OPERATOR, customer.org_id, "ada@example.org")
    key = admin.keys.create_key(OPERATOR, KeyDraft("hers", customer.project_id, user_id=user.id))
    assert admin.keys.get_key(OPERATOR, key.id).user == user == admin.organizations.get_user(OPERATOR, user.id)
    assert admin.keys.get_key(OPERATOR, key.id).last_used_at is None
    spend(admin, books, customer, "r1")
    assert admin.keys.get_key(OPERATOR, customer.key_id).last_used_at == int(START) // 3600 * 3600
    with pytest.raises(NotFound):
        admin.keys.get_key(OPERATOR, customer.project_id)


def test_a_key_is_not_used_before_it_was_created(admin: AdminService, books: Ledger, clock: FakeClock) -> None:
    clock.now = int(START) // 3600 * 3600 + 600.0
    customer = make_customer(admin)
    spend(admin, books, customer, "r1")
    assert admin.keys.get_key(OPERATOR, customer.key_id).last_used_at == clock.now
    with pytest.raises(NotFound):
        admin.organizations.get_user(OPERATOR, "user_x")


def test_users_are_listed_for_one_organisation_or_all(admin: AdminService, customer: Customer) -> None:
    other = make_customer(admin)
    for org_id in (customer.org_id, other.org_id):
        admin.organizations.create_user(OPERATOR, org_id, "ada@example.org")
    assert len(admin.organizations.list_users(OPERATOR)) == 2
    assert [user.org_id for user in admin.organizations.list_users(OPERATOR, other.org_id)] == [other.org_id]


def test_only_admins_rename(admin: AdminService, customer: Customer) -> None:
    admin.organizations.rename(OPERATOR, customer.project_id, "research")
    assert admin.organizations.get_account(OPERATOR, customer.project_id).name == "research"
    with pytest.raises(PermissionDenied):
        admin.organizations.rename(customer.identity, customer.key_id, "mine")
    with pytest.raises(InvalidRequest):
        admin.organizations.rename(OPERATOR, customer.project_id, " ")


def test_the_number_of_keys_below_a_key_is_bounded(
    admin: AdminService, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minting, "MAX_BELOW", 2)
    for number in range(2):
        made = admin.keys.create_key(customer.identity, KeyDraft(f"k{number}"))
        admin.organizations.disable(customer.identity, made.id)
    with pytest.raises(PermissionDenied, match="limit"):
        admin.keys.create_key(customer.identity, KeyDraft("one too many"))
    assert admin.keys.create_key(OPERATOR, KeyDraft("by an operator", customer.project_id))


def test_usage_is_filtered_by_key_project_and_user(admin: AdminService, books: Ledger, customer: Customer) -> None:
    other = make_customer(admin)
    spend(admin, books, customer, "r1")
    spend(admin, books, other, "r2")
    for name, wanted in (("key_ids", other.key_id), ("project_ids", other.project_id)):
        (bucket,) = read_usage(admin.store, OPERATOR, replace(TODAY, group_by=("key",), **{name: (wanted,)}))
        assert [line.key_id for line in bucket.lines] == [other.key_id]
    for name, wanted in (("user_ids", "user_x"), ("project_ids", "%"), ("project_ids", "_"), ("models", "x")):
        (bucket,) = read_usage(admin.store, OPERATOR, replace(TODAY, **{name: (wanted,)}))
        assert bucket.lines == ()


def test_an_admin_key_as_tenant_sees_no_other_account(admin: AdminService, customer: Customer) -> None:
    tenant = replace(customer.identity, scopes=frozenset(Scope)).as_tenant
    assert not tenant.is_admin
    assert tenant.scopes == frozenset(Scope) - {Scope.ADMIN}
    stranger = make_customer(admin)
    with pytest.raises(NotFound):
        admin.organizations.get_account(tenant, stranger.key_id)
