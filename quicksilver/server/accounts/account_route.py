"""`/v1/account`: the caller's own key, and the keys below it. Objects of other tenants are never found here."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.accounts.identity import Identity, Scope
from quicksilver.server.accounts.keys import draft_of, make_key, revoke_key, rotate_key
from quicksilver.server.accounts.reply_wire import AccountReply, KeyList, KeyReply, NewKeyReply
from quicksilver.server.accounts.usage_wire import PageQuery
from quicksilver.server.accounts.views import (
    key_reply,
    least_balance,
    price_of,
    rate_limits_reply,
    spending_reply,
)
from quicksilver.server.accounts.wire import KeyBody, RotateBody
from quicksilver.server.http.body import read_body, read_optional_body
from quicksilver.server.http.guard import accounts_of, identity_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import DeletedReply
from quicksilver.server.http.openapi import answers, answers_read, may_take, takes
from quicksilver.server.http.query import asks, checked_id, list_page, read_query
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1/account", tags=["account"])


@router.get("", responses=answers_read(AccountReply))
async def account(request: Request) -> Response:
    """The caller's key: rights, balance, limits. The accounts above it need the scope `usage`."""
    accounts, by, now = accounts_of(request), identity_of(request), time.time()
    path = await accounts.admin(lambda admin: admin.organizations.list_path(by))
    key = await accounts.admin(lambda admin: admin.keys.get_key(by, by.key_id))
    prices = await accounts.admin(lambda admin: admin.organizations.list_prices())
    shown = path if Scope.USAGE in by.scopes else [account for account in path if by.sees(account.path)]
    spending = [spending_reply(account, now) for account in shown]
    model = services_of(request).config.card.id
    reply: AccountReply = {
        "object": "account",
        "key": key_reply(key, now),
        "organization": {"id": path[0].id, "name": path[0].name},
        "project": {"id": path[1].id, "name": path[1].name},
        "scopes": sorted(by.scopes),
        "models": None if by.models is None else sorted(by.models),
        "balance": least_balance(shown, now),
        "accounts": spending,
        "rate_limits": rate_limits_reply(await accounts.limits(by)),
        "prices": price_of(prices, model, accounts.default_price),
        "purses": spending,
    }
    return json_response(reply)


@router.get("/keys", responses=answers_read(KeyList), openapi_extra=asks(PageQuery))
async def list_keys(request: Request) -> Response:
    """The caller's key and the keys below it, revoked ones included."""
    by, query = _require_keys_scope(request), read_query(request, PageQuery)
    keys = await accounts_of(request).admin(lambda admin: admin.keys.list_keys(by))
    now = time.time()
    return json_response(list_page([key_reply(key, now) for key in keys], [key.account.id for key in keys], query))


@router.post("/keys", responses=answers(NewKeyReply), openapi_extra=takes(KeyBody))
async def create_key(request: Request) -> Response:
    """Creates a key below the caller's key. `value` is shown here only."""
    by = _require_keys_scope(request)
    body = await read_body(request, KeyBody, services_of(request).config)
    return json_response(await make_key(accounts_of(request), by, draft_of(body, "", time.time())))


@router.get("/keys/{key_id}", responses=answers_read(KeyReply))
async def get_key(request: Request, key_id: str) -> Response:
    by, wanted = _require_keys_scope(request), checked_id(key_id)
    key = await accounts_of(request).admin(lambda admin: admin.keys.get_key(by, wanted))
    return json_response(key_reply(key, time.time()))


@router.post("/keys/{key_id}/rotate", responses=answers(NewKeyReply), openapi_extra=may_take(RotateBody))
async def rotate(request: Request, key_id: str) -> Response:
    """A new secret for the same key; the body may be left out."""
    by, wanted = _require_keys_scope(request), checked_id(key_id)
    body = await read_optional_body(request, RotateBody, services_of(request).config)
    return json_response(await rotate_key(accounts_of(request), by, wanted, body.overlap_seconds))


@router.delete("/keys/{key_id}", responses=answers_read(DeletedReply))
async def revoke(request: Request, key_id: str) -> Response:
    """Revokes a key and all keys below it, in every process within a second."""
    return json_response(await revoke_key(accounts_of(request), _require_keys_scope(request), checked_id(key_id)))


def _require_keys_scope(request: Request) -> Identity:
    identity = identity_of(request)
    identity.require(Scope.KEYS)
    return identity
