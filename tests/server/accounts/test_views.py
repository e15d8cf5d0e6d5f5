"""Replies filled from records: constants, computed fields, attributes; every field of the type is present."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from typing_extensions import TypedDict

from quicksilver.accounts.identity import Scope
from quicksilver.accounts.records import AccountRecord, Gauge, KeyRecord, Limits, LimitState, UserRecord
from quicksilver.server.accounts import reply_wire
from quicksilver.server.accounts.views import (
    admin_key_reply,
    budget_reply,
    key_reply,
    key_status,
    least_balance,
    organization_reply,
    project_reply,
    rate_limits_reply,
    reply_of,
    spending_reply,
    user_reply,
)

MICRO = 1_000_000


def account(**changes: Any) -> AccountRecord:
    fields: dict[str, Any] = {
        "id": "key_1", "kind": "key", "path": "org_1/proj_1/key_1", "name": "n", "created_at": 5, "disabled_at": None,
        "allowance": 100 * MICRO, "spent": 7 * MICRO, "reserved": MICRO, "in_flight": 2, "limits": Limits(1, 2, 3, 4),
        "period": None, "period_at": 0, "spent_before": 0,
    }  # fmt: skip
    return AccountRecord(**{**fields, **changes})


def key(**changes: Any) -> KeyRecord:
    fields: dict[str, Any] = {
        "account": account(), "scopes": frozenset({Scope.USAGE}), "models": None, "expires_at": None, "user": None,
        "displays": ("qs-ab",),
    }  # fmt: skip
    return KeyRecord(**{**fields, **changes})


class Form(TypedDict):
    object: Literal["thing"]
    id: str
    total: int


def test_reply_of_takes_computed_fields_constants_and_attributes_in_this_order() -> None:
    assert list(reply_of(Form, account(), total=3).items()) == [("object", "thing"), ("id", "key_1"), ("total", 3)]
    assert reply_of(Form, account(), id="other", total=3)["id"] == "other"


USER = UserRecord("user_1", "org_1", "a@example.com", 4, is_disabled=False)


@pytest.mark.parametrize(
    ("reply", "form"),
    [
        (key_reply(key(), 10), reply_wire.KeyReply),
        (admin_key_reply(key(user=USER), 10), reply_wire.AdminKeyReply),
        (organization_reply(account(kind="org"), 10), reply_wire.OrganizationReply),
        (project_reply(account(kind="project"), 10), reply_wire.ProjectReply),
        (budget_reply(account(), 10), reply_wire.BudgetReply),
        (spending_reply(account(), 10), reply_wire.SpendingReply),
        (user_reply(USER), reply_wire.UserReply),
        (rate_limits_reply(LimitState(Gauge(1, 2, 3.0))), reply_wire.RateLimitsReply),
    ],
)
def test_every_field_is_sent_in_the_order_of_its_type(reply: dict[str, Any], form: Any) -> None:
    assert list(reply) == list(form.__annotations__)


def test_key_status() -> None:
    assert key_status(key(), 10) == "active"
    assert key_status(key(expires_at=10), 10) == "expired"
    assert key_status(key(displays=()), 10) == "expired"
    assert key_status(key(account=account(disabled_at=3)), 10) == "revoked"


def test_the_least_balance_minus_reservations_is_the_balance() -> None:
    assert least_balance([account(), account(allowance=50 * MICRO), account(allowance=None)], 10) == "42"
    assert least_balance([account(allowance=None)], 10) is None
