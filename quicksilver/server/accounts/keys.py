"""Creates, rotates and revokes keys for the routes of both listeners."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quicksilver.accounts.identity import Identity, Scope, parse_scopes
from quicksilver.accounts.records import KeyDraft, KeyRecord, Limits, from_credits
from quicksilver.server.accounts.reply_wire import NewKeyReply
from quicksilver.server.accounts.views import key_reply
from quicksilver.server.accounts.wire import KeyBody, LimitsBody, ProjectKeyBody, RightsBody
from quicksilver.server.http.list_query import DeletedReply

if TYPE_CHECKING:
    from quicksilver.accounts.service import Accounts, AdminService

DEFAULT_SCOPES = (Scope.INFERENCE, Scope.USAGE)


def draft_of(body: KeyBody, project_id: str, now: float) -> KeyDraft:
    return KeyDraft(
        name=body.name,
        project_id=project_id,
        scopes=parse_scopes(body.scopes or DEFAULT_SCOPES),
        models=None if body.models is None else frozenset(body.models),
        expires_at=expiry(body.expires_in_seconds, now),
        budget=None if body.budget is None else from_credits(body.budget, "budget"),
        limits=None if body.limits is None else limits_of(body.limits),
        user_id=body.user_id if isinstance(body, ProjectKeyBody) else None,
    )


def expiry(seconds: int | None, now: float) -> int | None:
    return None if seconds is None else int(now) + seconds


def limits_of(body: LimitsBody) -> Limits:
    return Limits(
        requests=body.max_requests_per_1_minute,
        input_tokens=body.max_input_tokens_per_1_minute,
        output_tokens=body.max_output_tokens_per_1_minute,
        concurrency=body.max_requests_in_flight,
    )


async def make_key(accounts: Accounts, by: Identity, draft: KeyDraft) -> NewKeyReply:
    new = await accounts.admin(lambda admin: admin.keys.create_key(by, draft))
    return await _with_value(accounts, by, new.id, new.secret)


async def rotate_key(accounts: Accounts, by: Identity, key_id: str, overlap_s: int) -> NewKeyReply:
    new = await accounts.admin(lambda admin: admin.keys.rotate_key(by, key_id, overlap_s))
    return await _with_value(accounts, by, new.id, new.secret)


async def change_key(accounts: Accounts, by: Identity, key: KeyRecord, body: RightsBody) -> None:
    scopes = key.scopes if body.scopes is None else parse_scopes(body.scopes)
    models = key.models if body.models is None else frozenset(body.models)

    def change(admin: AdminService) -> None:
        if (scopes, models) != (key.scopes, key.models):
            admin.keys.narrow_key(by, key.account.id, scopes, models)
        if body.name is not None:
            admin.organizations.rename(by, key.account.id, body.name)

    await accounts.admin(change)


async def revoke_key(
    accounts: Accounts, by: Identity, key_id: str, kind: str = "organization.project.api_key.deleted"
) -> DeletedReply:
    def disable(admin: AdminService) -> None:
        admin.organizations.disable(by, admin.organizations.get_account(by, key_id, "key").id)

    await accounts.admin(disable)
    return {"object": kind, "id": key_id, "deleted": True}


async def _with_value(accounts: Accounts, by: Identity, key_id: str, secret: str) -> NewKeyReply:
    key = await accounts.admin(lambda admin: admin.keys.get_key(by, key_id))
    return {**key_reply(key, time.time()), "value": secret}
