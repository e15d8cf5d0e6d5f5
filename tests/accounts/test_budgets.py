"""Refusals of a budget and their waits."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from quicksilver.accounts.budgets import Budget, Demand, period_start, refusal_of
from quicksilver.accounts.limits import Window
from quicksilver.accounts.records import Limits
from quicksilver.errors import AuthenticationFailed, InsufficientQuota, InvalidRequest, RateLimited
from tests.accounts.conftest import START

ASK = Demand(amount=100, input_tokens=10, output_tokens=20)


def account(allowance: int | None = None, limits: Limits | None = None, kind: str = "key") -> Budget:
    return Budget("id", kind, False, allowance, 0, 0, 0, None, 0, 0, limits or Limits(), Window(START))


def test_unlimited_budget_admits_anything() -> None:
    assert account().refusal(Demand(10**18, 10**9, 10**9)) is None


def test_spent_money_is_a_final_refusal_and_reserved_money_is_not() -> None:
    one = account(allowance=150)
    one.take(ASK)
    assert isinstance(one.refusal(ASK), RateLimited)
    one.close(reserved=100, cost=60)
    refusal = one.refusal(ASK)
    assert isinstance(refusal, InsufficientQuota)
    assert refusal.message.startswith("this request may cost 0.0001 credits and the key's budget has 0.00009 left;")
    assert one.refusal(Demand(90, 1, 1)) is None
    one.close(reserved=0, cost=90)
    spent = one.refusal(ASK)
    assert isinstance(spent, InsufficientQuota)
    assert spent.message == "the key's budget is spent; raise it"


def test_refusal_of_an_organisation_mentions_credits() -> None:
    refusal = account(allowance=1, kind="org").refusal(ASK)
    assert refusal is not None
    assert "credits" in refusal.message
    assert refusal.message.endswith("set max_tokens lower or add credits")


def test_disabled_account_refuses_first() -> None:
    one = account(allowance=0)
    one.is_disabled = True
    assert isinstance(one.refusal(ASK), AuthenticationFailed)


def test_concurrency_is_counted_in_flight() -> None:
    one = account(limits=Limits(concurrency=1))
    one.take(ASK)
    refusal = one.refusal(ASK)
    assert isinstance(refusal, RateLimited)
    assert refusal.retry_after_s == 1.0
    one.close(100, 100)
    assert one.refusal(ASK) is None


@pytest.mark.parametrize("limits", [Limits(requests=2), Limits(input_tokens=25), Limits(output_tokens=59)])
def test_each_rate_limit_is_enforced(limits: Limits) -> None:
    one = account(limits=limits)
    one.take(ASK)
    assert one.refusal(ASK) is None
    one.take(ASK)
    refusal = one.refusal(ASK)
    assert isinstance(refusal, RateLimited)
    assert refusal.retry_after_s == 60.0


def test_request_above_the_limit_of_a_minute_is_invalid() -> None:
    refusal = account(limits=Limits(output_tokens=19)).refusal(ASK)
    assert isinstance(refusal, InvalidRequest)
    assert refusal.param == "max_tokens"


def test_path_reports_the_refusal_with_the_longest_wait() -> None:
    busy, empty = account(limits=Limits(concurrency=0)), account(allowance=5)
    assert isinstance(refusal_of([busy, empty], ASK), InsufficientQuota)
    full = account(limits=Limits(requests=1))
    full.take(ASK)
    said = refusal_of([busy, full], ASK)
    assert isinstance(said, RateLimited)
    assert said.retry_after_s == 60.0
    assert refusal_of([account(), account()], ASK) is None


def test_budget_is_renewed_in_a_new_period() -> None:
    one = account(allowance=100)
    one.period, one.period_at, one.spent = "month", period_start("month", START), 100
    one.roll_period(START + 60)
    assert one.left == 0
    one.roll_period(START + 31 * 86_400)
    assert one.left == 100


def test_periods_start_at_utc_midnight() -> None:
    now = datetime(2026, 3, 15, 13, 30, tzinfo=UTC).timestamp()
    assert period_start("day", now) == int(datetime(2026, 3, 15, tzinfo=UTC).timestamp())
    assert period_start("month", now) == int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
    assert period_start(None, now) == 0
