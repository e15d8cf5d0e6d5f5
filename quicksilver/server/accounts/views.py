"""Account records as replies. Pure: what the books say, in the words of the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quicksilver.accounts.identity import Scope
from quicksilver.accounts.records import Gauge, Limits, LimitState, Price, in_credits
from quicksilver.accounts.views import KeyRecord, PurseRecord, UserRecord
from quicksilver.server.accounts.reply_wire import (
    AdminKeyReply,
    BudgetReply,
    GaugeReply,
    KeyReply,
    KeyStatus,
    LimitsReply,
    MoneyReply,
    OrganizationReply,
    OwnerReply,
    PriceReply,
    ProjectReply,
    PurseReply,
    RateLimitsReply,
    UserReply,
)

KINDS = {"org": "organization", "project": "project", "key": "key"}


def amount(micro: int | None) -> str | None:
    return None if micro is None else in_credits(micro)


def limits_reply(limits: Limits) -> LimitsReply:
    return {
        "max_requests_per_1_minute": limits.requests,
        "max_input_tokens_per_1_minute": limits.input_tokens,
        "max_output_tokens_per_1_minute": limits.output_tokens,
        "max_requests_in_flight": limits.concurrency,
    }


def key_reply(key: KeyRecord, now: float) -> KeyReply:
    purse = key.purse
    org_id, project_id = purse.path.split("/")[:2]
    return {
        "object": "organization.project.api_key",
        "id": purse.id,
        "name": purse.name,
        "redacted_value": " ".join(key.displays),
        "created_at": purse.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "status": key_status(key, now),
        "scopes": sorted(key.scopes),
        "models": None if key.models is None else sorted(key.models),
        "project_id": project_id,
        "organization_id": org_id,
        "owner": _owner(key),
        "owner_project_access": "active" if key.user is None or not key.user.is_disabled else "inactive",
        "limits": limits_reply(purse.limits),
        **_money(purse, now),
    }


def key_status(key: KeyRecord, now: float) -> KeyStatus:
    if key.purse.is_disabled:
        return "revoked"
    has_ended = key.expires_at is not None and key.expires_at <= now
    return "expired" if has_ended or not key.displays else "active"


def _owner(key: KeyRecord) -> OwnerReply:
    if key.user is None:
        account = {"id": key.purse.id, "name": key.purse.name, "role": "member", "created_at": key.purse.created_at}
        return {"type": "service_account", "service_account": account}  # type: ignore[typeddict-item]
    user = key.user
    named = {"id": user.id, "email": user.email, "name": user.email, "role": "member", "created_at": user.created_at}
    return {"type": "user", "user": named}  # type: ignore[typeddict-item]


def _money(purse: PurseRecord, now: float) -> MoneyReply:
    return {
        "budget": amount(purse.allowance),
        "period": purse.period,  # type: ignore[typeddict-item]
        "spent": in_credits(purse.spent),
        "balance": amount(purse.balance_at(now)),
    }


def purse_reply(purse: PurseRecord, now: float) -> PurseReply:
    return {
        "id": purse.id,
        "kind": KINDS[purse.kind],  # type: ignore[typeddict-item]
        "name": purse.name,
        "granted": amount(purse.allowance),
        "spent": in_credits(purse.spent),
        "reserved": in_credits(purse.reserved),
        "balance": amount(purse.balance_at(now)),
        "period": purse.period,  # type: ignore[typeddict-item]
        "in_flight": purse.in_flight,
        "limits": limits_reply(purse.limits),
    }


def least_balance(purses: Sequence[PurseRecord], now: float) -> str | None:
    """What a request may still cost: the least that any of the purses has left, open reservations taken off."""
    found = [left - purse.reserved for purse in purses if (left := purse.balance_at(now)) is not None]
    return in_credits(max(0, min(found))) if found else None


def rate_limits_reply(limits: LimitState) -> RateLimitsReply:
    return {
        "requests": _gauge(limits.requests),
        "input_tokens": _gauge(limits.input_tokens),
        "output_tokens": _gauge(limits.output_tokens),
    }


def _gauge(gauge: Gauge) -> GaugeReply | None:
    if gauge.limit is None:
        return None
    return {"limit": gauge.limit, "remaining": gauge.remaining, "reset_s": round(gauge.reset_s, 3)}


def price_reply(model: str, price: Price) -> PriceReply:
    return {
        "model": model,
        "input": in_credits(price.input),
        "cached_input": in_credits(price.cached),
        "output": in_credits(price.output),
    }


def price_of(prices: Mapping[str, Price], model: str, default: Price) -> PriceReply:
    return price_reply(model, prices.get(model, default))


def organization_reply(org: PurseRecord, now: float) -> OrganizationReply:
    return {
        "object": "organization",
        "id": org.id,
        "name": org.name,
        "created_at": org.created_at,
        "status": "disabled" if org.is_disabled else "active",
        "granted": amount(org.allowance),
        "spent": in_credits(org.spent),
        "reserved": in_credits(org.reserved),
        "balance": amount(org.balance_at(now)),
        "limits": limits_reply(org.limits),
    }


def project_reply(project: PurseRecord, now: float) -> ProjectReply:
    return {
        "object": "organization.project",
        "id": project.id,
        "name": project.name,
        "organization_id": project.path.split("/")[0],
        "created_at": project.created_at,
        "archived_at": project.disabled_at,
        "status": "archived" if project.is_disabled else "active",
        "limits": limits_reply(project.limits),
        **_money(project, now),
    }


def user_reply(user: UserRecord) -> UserReply:
    return {
        "object": "organization.user",
        "id": user.id,
        "email": user.email,
        "name": user.email,
        "role": "reader",
        "added_at": user.created_at,
        "organization_id": user.org_id,
        "status": "removed" if user.is_disabled else "active",
    }


def admin_key_reply(key: KeyRecord, now: float) -> AdminKeyReply:
    user = key.user
    return {
        "object": "organization.admin_api_key",
        "id": key.purse.id,
        "name": key.purse.name,
        "redacted_value": " ".join(key.displays),
        "created_at": key.purse.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "status": key_status(key, now),
        "owner": {
            "type": "user",
            "object": "organization.user",
            "id": user.id if user else None,
            "name": user.email if user else None,
            "role": "owner",
            "created_at": user.created_at if user else key.purse.created_at,
        },
    }


def budget_reply(purse: PurseRecord, now: float) -> BudgetReply:
    return {"object": "organization.budget", "id": purse.id, **_money(purse, now)}


def is_admin_key(key: KeyRecord) -> bool:
    return Scope.ADMIN in key.scopes
