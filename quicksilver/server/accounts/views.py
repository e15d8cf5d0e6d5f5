"""Account records -> the replies of `reply_wire`. Pure functions.

A reply's TypedDict is the one place that lists its fields. `reply_of` fills them from the records; the functions here
name only the fields whose value has to be computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from quicksilver.accounts.identity import Scope
from quicksilver.accounts.records import (
    AccountRecord,
    Gauge,
    KeyRecord,
    Limits,
    LimitState,
    Price,
    UserRecord,
    in_credits,
)
from quicksilver.server.accounts.reply_wire import (
    AdminKeyReply,
    AdminOwnerReply,
    BudgetReply,
    GaugeReply,
    KeyReply,
    KeyStatus,
    LimitsReply,
    MoneyReply,
    OrganizationReply,
    OwnerReply,
    OwnerUserReply,
    PriceReply,
    ProjectReply,
    RateLimitsReply,
    ServiceAccountReply,
    SpendingReply,
    UserReply,
)

KINDS = {"org": "organization", "project": "project", "key": "key"}

Reply = TypeVar("Reply")


def reply_of(form: type[Reply], *records: object, **computed: Any) -> Reply:
    """A reply with the fields of `form`: computed ones, constants, and attributes of the first record that has them."""
    fields = _fields(form)  # type: ignore[arg-type]
    reply: Any = {name: _value(name, hint, records, computed) for name, hint in fields.items()}
    return reply  # type: ignore[no-any-return]


@cache
def _fields(form: Any) -> dict[str, Any]:
    return get_type_hints(form)


def _value(name: str, hint: Any, records: Sequence[object], computed: Mapping[str, Any]) -> Any:
    if name in computed:
        return computed[name]
    if get_origin(hint) is Literal and len(get_args(hint)) == 1:
        return get_args(hint)[0]
    record = next(record for record in records if hasattr(record, name))
    return getattr(record, name)


def amount(micro: int | None) -> str | None:
    return None if micro is None else in_credits(micro)


def limits_reply(limits: Limits) -> LimitsReply:
    return {
        "max_requests_per_1_minute": limits.requests,
        "max_input_tokens_per_1_minute": limits.input_tokens,
        "max_output_tokens_per_1_minute": limits.output_tokens,
        "max_requests_in_flight": limits.concurrency,
    }


def _money(account: AccountRecord, now: float) -> MoneyReply:
    return reply_of(
        MoneyReply,
        account,
        budget=amount(account.allowance),
        spent=in_credits(account.spent),
        balance=amount(account.balance_at(now)),
    )


def _credits(account: AccountRecord, now: float) -> dict[str, Any]:
    return {
        "granted": amount(account.allowance),
        "spent": in_credits(account.spent),
        "reserved": in_credits(account.reserved),
        "balance": amount(account.balance_at(now)),
        "limits": limits_reply(account.limits),
    }


def key_reply(key: KeyRecord, now: float) -> KeyReply:
    org_id, project_id = key.account.path.split("/")[:2]
    return reply_of(
        KeyReply,
        key,
        key.account,
        redacted_value=" ".join(key.displays),
        status=key_status(key, now),
        scopes=sorted(key.scopes),
        models=None if key.models is None else sorted(key.models),
        project_id=project_id,
        organization_id=org_id,
        owner=_owner(key),
        owner_project_access="active" if key.user is None or not key.user.is_disabled else "inactive",
        limits=limits_reply(key.account.limits),
        **_money(key.account, now),
    )


def key_status(key: KeyRecord, now: float) -> KeyStatus:
    if key.account.is_disabled:
        return "revoked"
    has_ended = key.expires_at is not None and key.expires_at <= now
    return "expired" if has_ended or not key.displays else "active"


def _owner(key: KeyRecord) -> OwnerReply:
    if key.user is None:
        account = reply_of(ServiceAccountReply, key.account, role="member")
        return {"type": "service_account", "service_account": account}
    return {"type": "user", "user": reply_of(OwnerUserReply, key.user, name=key.user.email, role="member")}


def spending_reply(account: AccountRecord, now: float) -> SpendingReply:
    return reply_of(SpendingReply, account, kind=KINDS[account.kind], **_credits(account, now))


def least_balance(accounts: Sequence[AccountRecord], now: float) -> str | None:
    """The most that a request may cost: the least amount left in any of the accounts, minus open reservations."""
    found = [left - account.reserved for account in accounts if (left := account.balance_at(now)) is not None]
    return in_credits(max(0, min(found))) if found else None


def rate_limits_reply(limits: LimitState) -> RateLimitsReply:
    gauges = (limits.requests, limits.input_tokens, limits.output_tokens)
    return dict(zip(RateLimitsReply.__annotations__, map(_gauge, gauges), strict=True))  # type: ignore[return-value]


def _gauge(gauge: Gauge) -> GaugeReply | None:
    return None if gauge.limit is None else reply_of(GaugeReply, gauge, reset_s=round(gauge.reset_s, 3))


def price_reply(model: str, price: Price) -> PriceReply:
    return {
        "model": model,
        "input": in_credits(price.input),
        "cached_input": in_credits(price.cached),
        "output": in_credits(price.output),
    }


def price_of(prices: Mapping[str, Price], model: str, default: Price) -> PriceReply:
    return price_reply(model, prices.get(model, default))


def organization_reply(org: AccountRecord, now: float) -> OrganizationReply:
    status = "disabled" if org.is_disabled else "active"
    return reply_of(OrganizationReply, org, status=status, **_credits(org, now))


def project_reply(project: AccountRecord, now: float) -> ProjectReply:
    return reply_of(
        ProjectReply,
        project,
        organization_id=project.path.split("/")[0],
        archived_at=project.disabled_at,
        status="archived" if project.is_disabled else "active",
        limits=limits_reply(project.limits),
        **_money(project, now),
    )


def user_reply(user: UserRecord) -> UserReply:
    return reply_of(
        UserReply,
        user,
        name=user.email,
        added_at=user.created_at,
        organization_id=user.org_id,
        status="removed" if user.is_disabled else "active",
    )


def admin_key_reply(key: KeyRecord, now: float) -> AdminKeyReply:
    user = key.user
    owner = reply_of(
        AdminOwnerReply,
        id=user.id if user else None,
        name=user.email if user else None,
        created_at=user.created_at if user else key.account.created_at,
    )
    displays, status = " ".join(key.displays), key_status(key, now)
    return reply_of(AdminKeyReply, key, key.account, redacted_value=displays, status=status, owner=owner)


def budget_reply(account: AccountRecord, now: float) -> BudgetReply:
    return reply_of(BudgetReply, account, **_money(account, now))


def is_admin_key(key: KeyRecord) -> bool:
    return Scope.ADMIN in key.scopes
