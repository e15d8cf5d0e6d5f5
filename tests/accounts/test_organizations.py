"""Organisations, users, credits, budgets, limits, prices, and the rights to change them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Identity
from quicksilver.accounts.key_lookup import KeyLookup
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import MAX_AMOUNT, MICRO, KeyDraft, Limits, Price
from quicksilver.accounts.service import AdminService
from quicksilver.errors import AuthenticationFailed, Conflict, InvalidRequest, NotFound, PermissionDenied
from tests.accounts.conftest import RIGHTS, Customer, FakeClock, make_customer


def test_sign_up_gives_ten_million_credits_and_a_project(admin: AdminService) -> None:
    org = admin.organizations.create_org(OPERATOR, "acme")
    assert AccountsConfig().signup_credits == 10_000_000
    assert org.balance == 10_000_000 * MICRO
    assert [project.name for project in admin.organizations.list_accounts(OPERATOR, "project", org.id)] == ["default"]
    assert audit(admin.store) == []


def test_project_is_made_within_an_organisation(admin: AdminService, customer: Customer) -> None:
    project = admin.organizations.create_project(OPERATOR, customer.org_id, "research")
    assert project.path == f"{customer.org_id}/{project.id}"
    with pytest.raises(NotFound):
        admin.organizations.create_project(OPERATOR, customer.project_id, "not an organisation")


def test_default_price_is_one_credit_a_token() -> None:
    assert AccountsConfig().default_price == Price(MICRO, MICRO // 10, MICRO)


def test_credits_are_added_once_per_reference(admin: AdminService, customer: Customer) -> None:
    assert admin.organizations.add_credits(OPERATOR, customer.org_id, 5, "invoice 1").balance == MICRO + 5
    with pytest.raises(Conflict):
        admin.organizations.add_credits(OPERATOR, customer.org_id, 5, "invoice 1")
    assert admin.organizations.get_account(OPERATOR, customer.org_id).balance == MICRO + 5
    assert audit(admin.store) == []


@pytest.mark.parametrize("amount", [0, -1, MAX_AMOUNT + 1, MAX_AMOUNT])
def test_invalid_amounts_change_nothing(admin: AdminService, customer: Customer, amount: int) -> None:
    with pytest.raises(InvalidRequest):
        admin.organizations.add_credits(OPERATOR, customer.org_id, amount, "gift")
    assert audit(admin.store) == []
    assert admin.organizations.add_credits(OPERATOR, customer.org_id, 1, "gift").balance == MICRO + 1


def test_an_organisation_with_unlimited_credits_takes_none(admin: AdminService) -> None:
    assert admin.keys.bootstrap() is not None
    (operators,) = admin.organizations.list_accounts(OPERATOR, "org")
    assert operators.balance is None
    with pytest.raises(InvalidRequest, match="unlimited"):
        admin.organizations.add_credits(OPERATOR, operators.id, 1, "gift")


def test_organisation_may_start_without_credits(admin: AdminService) -> None:
    assert admin.organizations.create_org(OPERATOR, "poor", 0).balance == 0
    assert audit(admin.store) == []


def test_only_projects_and_keys_have_budgets(admin: AdminService, customer: Customer) -> None:
    assert admin.organizations.set_budget(OPERATOR, customer.project_id, 7).balance == 7
    assert admin.organizations.set_budget(OPERATOR, customer.key_id, 9, "day").period == "day"
    assert admin.organizations.set_budget(OPERATOR, customer.key_id, None).balance is None
    odd = ((customer.org_id, 1, None), (customer.key_id, -1, None), (customer.key_id, 1, "week"))
    for account_id, amount, period in odd:
        with pytest.raises(InvalidRequest):
            admin.organizations.set_budget(OPERATOR, account_id, amount, period)


def test_limits_are_stored(admin: AdminService, customer: Customer) -> None:
    admin.organizations.set_limits(OPERATOR, customer.org_id, Limits(1, 2, 3, 4))
    assert admin.organizations.get_account(OPERATOR, customer.org_id).limits == Limits(1, 2, 3, 4)


def test_removing_a_user_disables_the_keys_of_the_user(
    admin: AdminService, customer: Customer, clock: FakeClock
) -> None:
    user = admin.organizations.create_user(OPERATOR, customer.org_id, "ada@example.org")
    with pytest.raises(Conflict):
        admin.organizations.create_user(OPERATOR, customer.org_id, "ada@example.org")
    key = admin.keys.create_key(OPERATOR, KeyDraft("hers", customer.project_id, user_id=user.id))
    ring = KeyLookup(admin.store, admin.pepper, 0.0, clock)
    assert ring.look_up(ring.digest(key.secret)).user_id == user.id
    admin.organizations.remove_user(OPERATOR, user.id)
    with pytest.raises(AuthenticationFailed):
        ring.look_up(ring.digest(key.secret))
    assert [(one.email, one.is_disabled) for one in admin.organizations.list_users(OPERATOR, customer.org_id)] == [
        ("ada@example.org", True)
    ]
    with pytest.raises(NotFound):
        admin.organizations.remove_user(OPERATOR, "user_none")
    with pytest.raises(NotFound):
        admin.keys.create_key(OPERATOR, KeyDraft("again", customer.project_id, user_id=user.id))


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "a\x00", "x" * 129, "\ud800"])
def test_invalid_names_are_refused(admin: AdminService, name: str) -> None:
    with pytest.raises(InvalidRequest):
        admin.organizations.create_org(OPERATOR, name)


ADMIN_WORK: dict[str, Callable[[AdminService, Identity, Customer], object]] = {
    "create_org": lambda admin, by, it: admin.organizations.create_org(by, "x"),
    "create_project": lambda admin, by, it: admin.organizations.create_project(by, it.org_id, "x"),
    "create_user": lambda admin, by, it: admin.organizations.create_user(by, it.org_id, "x"),
    "remove_user": lambda admin, by, it: admin.organizations.remove_user(by, "x"),
    "list_users": lambda admin, by, it: admin.organizations.list_users(by, it.org_id),
    "add_credits": lambda admin, by, it: admin.organizations.add_credits(by, it.org_id, 1, "x"),
    "set_budget": lambda admin, by, it: admin.organizations.set_budget(by, it.key_id, 1),
    "set_limits": lambda admin, by, it: admin.organizations.set_limits(by, it.key_id, Limits()),
    "set_price": lambda admin, by, it: admin.organizations.set_price(by, "m", Price(1, 1, 1)),
    "enable": lambda admin, by, it: admin.organizations.enable(by, it.key_id),
}
FOREIGN_WORK: dict[str, Callable[[AdminService, Identity, Customer], object]] = {
    "get": lambda admin, by, it: admin.organizations.get_account(by, it.key_id),
    "get project": lambda admin, by, it: admin.organizations.get_account(by, it.project_id),
    "disable": lambda admin, by, it: admin.organizations.disable(by, it.key_id),
    "disable org": lambda admin, by, it: admin.organizations.disable(by, it.org_id),
    "rotate": lambda admin, by, it: admin.keys.rotate_key(by, it.key_id),
    "narrow": lambda admin, by, it: admin.keys.narrow_key(by, it.key_id, frozenset(), None),
    "create": lambda admin, by, it: admin.keys.create_key(by, KeyDraft("x", it.project_id)),
    "list keys": lambda admin, by, it: admin.keys.list_keys(by, it.project_id),
    "list": lambda admin, by, it: admin.organizations.list_accounts(by, "key", it.org_id),
}


@pytest.mark.parametrize("work", ADMIN_WORK.values(), ids=ADMIN_WORK.keys())
def test_administration_needs_the_admin_scope(
    admin: AdminService, customer: Customer, work: Callable[[AdminService, Identity, Customer], object]
) -> None:
    with pytest.raises(PermissionDenied):
        work(admin, customer.identity, customer)


@pytest.mark.parametrize("work", FOREIGN_WORK.values(), ids=FOREIGN_WORK.keys())
def test_foreign_objects_are_not_found(
    admin: AdminService, customer: Customer, work: Callable[[AdminService, Identity, Customer], object]
) -> None:
    stranger = make_customer(admin)
    unknown = Customer("org_none", "proj_none", "key_none", "", customer.identity)
    with pytest.raises(NotFound) as foreign:
        work(admin, stranger.identity, customer)
    with pytest.raises(NotFound) as missing:
        work(admin, stranger.identity, unknown)
    assert str(foreign.value) == str(missing.value)


def test_key_cannot_change_its_organisation_project_or_siblings(admin: AdminService, customer: Customer) -> None:
    sibling = admin.keys.create_key(OPERATOR, KeyDraft("sibling", customer.project_id, scopes=RIGHTS))
    for account_id in (customer.org_id, customer.project_id, sibling.id):
        with pytest.raises(NotFound):
            admin.organizations.disable(customer.identity, account_id)
    assert [account.id for account in admin.organizations.list_accounts(customer.identity, "key")] == [customer.key_id]


def test_key_may_revoke_itself(admin: AdminService, customer: Customer) -> None:
    admin.organizations.disable(customer.identity, customer.key_id)
    assert admin.organizations.get_account(OPERATOR, customer.key_id).is_disabled
