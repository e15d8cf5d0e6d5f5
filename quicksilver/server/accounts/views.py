"""Account records as replies. Pure: what the books say, in the words of the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    account = key.account
    org_id, project_id = account.path.split("/")[:2]
    return {
        "object": "organization.project.api_key",
        "id": account.id,
        "name": account.name,
        "redacted_value": " ".join(key.displays),
        "created_at": account.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "status": key_status(key, now),
        "scopes": sorted(key.scopes),
        "models": None if key.models is None else sorted(key.models),
        "project_id": project_id,
        "organization_id": org_id,
        "owner": _owner(key),
        "owner_project_access": "active" if key.user is None or not key.user.is_disabled else "inactive",
        "limits": limits_reply(account.limits),
        **_money(account, now),
    }


def key_status(key: KeyRecord, now: float) -> KeyStatus:
    if key.account.is_disabled:
        return "revoked"
    has_ended = key.expires_at is not None and key.expires_at <= now
    return "expired" if has_ended or not key.displays else "active"


def _owner(key: KeyRecord) -> OwnerReply:
    if key.user is None:
        account = {
            "id": key.account.id,
            "name": key.account.name,
            "role": "member",
            "created_at": key.account.created_at,
        }
        return {"type": "service_account", "service_account": account}  # type: ignore[typeddict-item]
    user = key.user
    named = {"id": user.id, "email": user.email, "name": user.email, "role": "member", "created_at": user.created_at}
    return {"type": "user", "user": named}  # type: ignore[typeddict-item]


def _money(account: AccountRecord, now: float) -> MoneyReply:
    return {
        "budget": amount(account.allowance),
        "period": account.period,  # type: ignore[typeddict-item]
        "spent": in_credits(account.spent),
        "balance": amount(account.balance_at(now)),
    }


def purse_reply(account: AccountRecord, now: float) -> PurseReply:
    return {
        "id": account.id,
        "kind": KINDS[account.kind],  # type: ignore[typeddict-item]
        "name": account.name,
        "granted": amount(account.allowance),
        "spent": in_credits(account.spent),
        "reserved": in_credits(account.reserved),
        "balance": amount(account.balance_at(now)),
        "period": account.period,  # type: ignore[typeddict-item]
        "in_flight": account.in_flight,
        "limits": limits_reply(account.limits),
    }


def least_balance(accounts: Sequence[AccountRecord], now: float) -> str | None:
    """What a request may still cost: the least that any of the accounts has left, open reservations taken off."""
    found = [left - account.reserved for account in accounts if (left := account.balance_at(now)) is not None]
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


def organization_reply(org: AccountRecord, now: float) -> OrganizationReply:
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


def project_reply(project: AccountRecord, now: float) -> ProjectReply:
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
        "id": key.account.id,
        "name": key.account.name,
        "redacted_value": " ".join(key.displays),
        "created_at": key.account.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "status": key_status(key, now),
        "owner": {
            "type": "user",
            "object": "organization.user",
            "id": user.id if user else None,
            "name": user.email if user else None,
            "role": "owner",
            "created_at": user.created_at if user else key.account.created_at,
        },
    }


def budget_reply(account: AccountRecord, now: float) -> BudgetReply:
    return {"object": "organization.budget", "id": account.id, **_money(account, now)}


def is_admin_key(key: KeyRecord) -> bool:
    return Scope.ADMIN in key.scopes
