"""Organisations, users, credits, budgets, limits, prices: and who may touch them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Identity
from quicksilver.accounts.keyring import Keyring
from quicksilver.accounts.maintenance import check
from quicksilver.accounts.records import MAX_AMOUNT, MICRO, Limits, Price
from quicksilver.accounts.service import Desk
from quicksilver.accounts.views import KeyDraft
from quicksilver.errors import AuthenticationFailed, Conflict, InvalidRequest, NotFound, PermissionDenied
from tests.accounts.conftest import RIGHTS, Customer, FakeClock, make_customer


def test_sign_up_gives_ten_million_credits_and_a_project(desk: Desk) -> None:
    org = desk.directory.create_org(OPERATOR, "acme")
    assert AccountsConfig().signup_credits == 10_000_000
    assert org.balance == 10_000_000 * MICRO
    assert [project.name for project in desk.directory.list_purses(OPERATOR, "project", org.id)] == ["default"]
    assert check(desk.store) == []


def test_project_is_made_within_an_organisation(desk: Desk, customer: Customer) -> None:
    project = desk.directory.create_project(OPERATOR, customer.org_id, "research")
    assert project.path == f"{customer.org_id}/{project.id}"
    with pytest.raises(NotFound):
        desk.directory.create_project(OPERATOR, customer.project_id, "not an organisation")


def test_default_price_is_one_credit_a_token() -> None:
    assert AccountsConfig().default_price == Price(MICRO, MICRO // 10, MICRO)


def test_credits_add_up_and_a_reference_counts_once(desk: Desk, customer: Customer) -> None:
    assert desk.directory.add_credits(OPERATOR, customer.org_id, 5, "invoice 1").balance == MICRO + 5
    with pytest.raises(Conflict):
        desk.directory.add_credits(OPERATOR, customer.org_id, 5, "invoice 1")
    assert desk.directory.get_purse(OPERATOR, customer.org_id).balance == MICRO + 5
    assert check(desk.store) == []


@pytest.mark.parametrize("amount", [0, -1, MAX_AMOUNT + 1, MAX_AMOUNT])
def test_odd_amounts_are_refused_whole(desk: Desk, customer: Customer, amount: int) -> None:
    with pytest.raises(InvalidRequest):
        desk.directory.add_credits(OPERATOR, customer.org_id, amount, "gift")
    assert check(desk.store) == []
    assert desk.directory.add_credits(OPERATOR, customer.org_id, 1, "gift").balance == MICRO + 1


def test_organisation_without_bound_takes_no_credits(desk: Desk, customer: Customer) -> None:
    assert desk.directory.lift_credit_bound(OPERATOR, customer.org_id).balance is None
    with pytest.raises(InvalidRequest, match="no bound"):
        desk.directory.add_credits(OPERATOR, customer.org_id, 1, "gift")


def test_organisation_may_start_with_nothing(desk: Desk) -> None:
    assert desk.directory.create_org(OPERATOR, "poor", 0).balance == 0
    assert check(desk.store) == []


def test_budget_belongs_to_projects_and_keys(desk: Desk, customer: Customer) -> None:
    assert desk.directory.set_budget(OPERATOR, customer.project_id, 7).balance == 7
    assert desk.directory.set_budget(OPERATOR, customer.key_id, 9, "day").period == "day"
    assert desk.directory.set_budget(OPERATOR, customer.key_id, None).balance is None
    odd = ((customer.org_id, 1, None), (customer.key_id, -1, None), (customer.key_id, 1, "week"))
    for purse_id, amount, period in odd:
        with pytest.raises(InvalidRequest):
            desk.directory.set_budget(OPERATOR, purse_id, amount, period)


def test_limits_are_stored(desk: Desk, customer: Customer) -> None:
    desk.directory.set_limits(OPERATOR, customer.org_id, Limits(1, 2, 3, 4))
    assert desk.directory.get_purse(OPERATOR, customer.org_id).limits == Limits(1, 2, 3, 4)


def test_user_is_unique_in_an_organisation_and_takes_their_keys_along(
    desk: Desk, customer: Customer, clock: FakeClock
) -> None:
    user = desk.directory.create_user(OPERATOR, customer.org_id, "ada@example.org")
    with pytest.raises(Conflict):
        desk.directory.create_user(OPERATOR, customer.org_id, "ada@example.org")
    key = desk.mint.create_key(OPERATOR, KeyDraft("hers", customer.project_id, user_id=user.id))
    ring = Keyring(desk.store, desk.pepper, 0.0, clock)
    assert ring.look_up(ring.digest(key.secret)).user_id == user.id
    desk.directory.remove_user(OPERATOR, user.id)
    with pytest.raises(AuthenticationFailed):
        ring.look_up(ring.digest(key.secret))
    assert [(one.email, one.is_disabled) for one in desk.directory.list_users(OPERATOR, customer.org_id)] == [
        ("ada@example.org", True)
    ]
    with pytest.raises(NotFound):
        desk.directory.remove_user(OPERATOR, "user_none")
    with pytest.raises(NotFound):
        desk.mint.create_key(OPERATOR, KeyDraft("again", customer.project_id, user_id=user.id))


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "a\x00", "x" * 129, "\ud800"])
def test_odd_names_are_refused(desk: Desk, name: str) -> None:
    with pytest.raises(InvalidRequest):
        desk.directory.create_org(OPERATOR, name)


ADMIN_WORK: dict[str, Callable[[Desk, Identity, Customer], object]] = {
    "create_org": lambda desk, by, it: desk.directory.create_org(by, "x"),
    "create_project": lambda desk, by, it: desk.directory.create_project(by, it.org_id, "x"),
    "create_user": lambda desk, by, it: desk.directory.create_user(by, it.org_id, "x"),
    "remove_user": lambda desk, by, it: desk.directory.remove_user(by, "x"),
    "list_users": lambda desk, by, it: desk.directory.list_users(by, it.org_id),
    "add_credits": lambda desk, by, it: desk.directory.add_credits(by, it.org_id, 1, "x"),
    "lift_credit_bound": lambda desk, by, it: desk.directory.lift_credit_bound(by, it.org_id),
    "set_budget": lambda desk, by, it: desk.directory.set_budget(by, it.key_id, 1),
    "set_limits": lambda desk, by, it: desk.directory.set_limits(by, it.key_id, Limits()),
    "set_price": lambda desk, by, it: desk.directory.set_price(by, "m", Price(1, 1, 1)),
    "enable": lambda desk, by, it: desk.directory.enable(by, it.key_id),
}
FOREIGN_WORK: dict[str, Callable[[Desk, Identity, Customer], object]] = {
    "get": lambda desk, by, it: desk.directory.get_purse(by, it.key_id),
    "get project": lambda desk, by, it: desk.directory.get_purse(by, it.project_id),
    "disable": lambda desk, by, it: desk.directory.disable(by, it.key_id),
    "disable org": lambda desk, by, it: desk.directory.disable(by, it.org_id),
    "rotate": lambda desk, by, it: desk.mint.rotate_key(by, it.key_id),
    "narrow": lambda desk, by, it: desk.mint.narrow_key(by, it.key_id, frozenset(), None),
    "create": lambda desk, by, it: desk.mint.create_key(by, KeyDraft("x", it.project_id)),
    "list keys": lambda desk, by, it: desk.mint.list_keys(by, it.project_id),
    "list": lambda desk, by, it: desk.directory.list_purses(by, "key", it.org_id),
}


@pytest.mark.parametrize("work", ADMIN_WORK.values(), ids=ADMIN_WORK.keys())
def test_arranging_needs_an_admin(
    desk: Desk, customer: Customer, work: Callable[[Desk, Identity, Customer], object]
) -> None:
    with pytest.raises(PermissionDenied):
        work(desk, customer.identity, customer)


@pytest.mark.parametrize("work", FOREIGN_WORK.values(), ids=FOREIGN_WORK.keys())
def test_foreign_objects_look_like_missing_ones(
    desk: Desk, customer: Customer, work: Callable[[Desk, Identity, Customer], object]
) -> None:
    stranger = make_customer(desk)
    nobody = Customer("org_none", "proj_none", "key_none", "", customer.identity)
    with pytest.raises(NotFound) as foreign:
        work(desk, stranger.identity, customer)
    with pytest.raises(NotFound) as missing:
        work(desk, stranger.identity, nobody)
    assert str(foreign.value) == str(missing.value)


def test_own_org_and_project_and_siblings_are_out_of_a_keys_reach(desk: Desk, customer: Customer) -> None:
    sibling = desk.mint.create_key(OPERATOR, KeyDraft("sibling", customer.project_id, scopes=RIGHTS))
    for purse_id in (customer.org_id, customer.project_id, sibling.id):
        with pytest.raises(NotFound):
            desk.directory.disable(customer.identity, purse_id)
    assert [purse.id for purse in desk.directory.list_purses(customer.identity, "key")] == [customer.key_id]


def test_key_may_end_itself(desk: Desk, customer: Customer) -> None:
    desk.directory.disable(customer.identity, customer.key_id)
    assert desk.directory.get_purse(OPERATOR, customer.key_id).is_disabled
