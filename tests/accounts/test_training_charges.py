"""Charges of training: once for each part, to the key's accounts, without counting against the limits per minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.records import MICRO, KeyDraft, Limits, Price
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.accounts.training_charges import TrainingCharges
from quicksilver.errors import AuthenticationFailed, InsufficientQuota


@pytest.fixture
def books(tmp_path: Path) -> Iterator[tuple[AdminService, TrainingCharges]]:
    url = f"sqlite:///{tmp_path}/books.db"
    config = AccountsConfig(default_price=Price(2 * MICRO, MICRO, 3 * MICRO))
    admin, charges = open_admin(url, config), TrainingCharges(url, config)
    yield admin, charges
    charges.close()
    admin.store.close()


def new_key(admin: AdminService, credits: int = 100_000, limits: Limits | None = None) -> tuple[str, str]:
    org = admin.organizations.create_org(OPERATOR, "org", credits)
    project = admin.organizations.create_project(OPERATOR, org.id, "project")
    return org.id, admin.keys.create_key(OPERATOR, KeyDraft("key", project.id, limits=limits)).id


def spent(admin: AdminService, org: str) -> int:
    account = admin.organizations.get_account(OPERATOR, org)
    assert (account.reserved, account.in_flight) == (0, 0)
    return account.spent // MICRO


def test_a_part_is_charged_once(books: tuple[AdminService, TrainingCharges]) -> None:
    admin, charges = books
    org, key = new_key(admin)
    assert charges.charge(key, "job-epoch-1", "nano", 100) == 200 * MICRO
    assert charges.charge(key, "job-epoch-1", "nano", 100) == 0
    assert charges.charge(key, "job-epoch-2", "nano", 50) == 100 * MICRO
    assert spent(admin, org) == 300


def test_training_has_a_price_of_its_own(books: tuple[AdminService, TrainingCharges]) -> None:
    admin, charges = books
    org, key = new_key(admin)
    admin.organizations.set_price(OPERATOR, "training:nano", Price(MICRO, 0, 0))
    charges.charge(key, "job-epoch-1", "nano", 100)
    assert spent(admin, org) == 100


def test_what_the_budget_does_not_allow_is_refused(books: tuple[AdminService, TrainingCharges]) -> None:
    admin, charges = books
    org, key = new_key(admin, credits=100)
    charges.check(key, "nano", 50)
    with pytest.raises(InsufficientQuota):
        charges.check(key, "nano", 51)
    with pytest.raises(InsufficientQuota):
        charges.charge(key, "job-epoch-1", "nano", 51)
    assert spent(admin, org) == 0


def test_trained_tokens_do_not_count_against_limits_per_minute(books: tuple[AdminService, TrainingCharges]) -> None:
    admin, charges = books
    org, key = new_key(admin, limits=Limits(input_tokens=10))
    charges.charge(key, "job-epoch-1", "nano", 100)
    assert spent(admin, org) == 200


def test_a_revoked_key_is_not_charged(books: tuple[AdminService, TrainingCharges]) -> None:
    admin, charges = books
    _, key = new_key(admin)
    admin.organizations.disable(OPERATOR, key)
    with pytest.raises(AuthenticationFailed):
        charges.charge(key, "job-epoch-1", "nano", 1)
