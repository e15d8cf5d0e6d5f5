"""Admin keys, budgets, limits and prices, on the admin listener."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.accounts.identity import ALL_SCOPES
from quicksilver.accounts.records import AccountRecord, KeyDraft, KeyRecord, Price, from_credits
from quicksilver.errors import NotFound
from quicksilver.server.accounts.keys import expiry, limits_of, revoke_key
from quicksilver.server.accounts.reply_wire import (
    AdminKeyList,
    AdminKeyReply,
    BudgetReply,
    LimitsReply,
    NewAdminKeyReply,
    PriceReply,
    PricesReply,
)
from quicksilver.server.accounts.usage_wire import PageQuery
from quicksilver.server.accounts.views import (
    admin_key_reply,
    budget_reply,
    is_admin_key,
    limits_reply,
    price_reply,
)
from quicksilver.server.accounts.wire import AdminKeyBody, BudgetBody, LimitsBody, PriceBody
from quicksilver.server.http.body import read_body
from quicksilver.server.http.guard import accounts_of, identity_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import DeletedReply
from quicksilver.server.http.openapi import answers, answers_read, takes
from quicksilver.server.http.query import asks, checked_id, list_page, read_query
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1/organization", tags=["admin settings"])


@router.get("/admin_api_keys", responses=answers_read(AdminKeyList), openapi_extra=asks(PageQuery))
async def list_admin_keys(request: Request) -> Response:
    by, query, now = identity_of(request), read_query(request, PageQuery), time.time()
    found = await accounts_of(request).admin(lambda admin: admin.keys.list_keys(by))
    keys = [key for key in found if is_admin_key(key)]
    return json_response(list_page([admin_key_reply(key, now) for key in keys], [k.account.id for k in keys], query))


@router.post("/admin_api_keys", responses=answers(NewAdminKeyReply), openapi_extra=takes(AdminKeyBody))
async def create_admin_key(request: Request) -> Response:
    """Creates an admin key in the caller's project. Only this reply contains the secret, `value`."""
    by, now = identity_of(request), time.time()
    body = await read_body(request, AdminKeyBody, services_of(request).config)
    draft = KeyDraft(body.name, by.project_id, ALL_SCOPES, expires_at=expiry(body.expires_in_seconds, now))
    new = await accounts_of(request).admin(lambda admin: admin.keys.create_key(by, draft))
    return json_response({**admin_key_reply(await _admin_key(request, new.id), now), "value": new.secret})


@router.get("/admin_api_keys/{key_id}", responses=answers_read(AdminKeyReply))
async def get_admin_key(request: Request, key_id: str) -> Response:
    return json_response(admin_key_reply(await _admin_key(request, key_id), time.time()))


@router.delete("/admin_api_keys/{key_id}", responses=answers_read(DeletedReply))
async def revoke_admin_key(request: Request, key_id: str) -> Response:
    key = await _admin_key(request, key_id)
    kind = "organization.admin_api_key.deleted"
    return json_response(await revoke_key(accounts_of(request), identity_of(request), key.account.id, kind))


@router.get("/limits/{account_id}", responses=answers_read(LimitsReply))
async def get_limits(request: Request, account_id: str) -> Response:
    """Of an organisation, project or key."""
    return json_response(limits_reply((await _account(request, account_id)).limits))


@router.post("/limits/{account_id}", responses=answers(LimitsReply), openapi_extra=takes(LimitsBody))
async def set_limits(request: Request, account_id: str) -> Response:
    """Sets all limits at once; a limit that is left out is removed."""
    by, wanted = identity_of(request), checked_id(account_id)
    body = await read_body(request, LimitsBody, services_of(request).config)
    await accounts_of(request).admin(lambda admin: admin.organizations.set_limits(by, wanted, limits_of(body)))
    return json_response(limits_reply(limits_of(body)))


@router.get("/budgets/{account_id}", responses=answers_read(BudgetReply))
async def get_budget(request: Request, account_id: str) -> Response:
    return json_response(budget_reply(await _account(request, account_id), time.time()))


@router.post("/budgets/{account_id}", responses=answers(BudgetReply), openapi_extra=takes(BudgetBody))
async def set_budget(request: Request, account_id: str) -> Response:
    """Sets the budget of a project or key; an organisation has credits. A daily or monthly period starts now."""
    by, wanted = identity_of(request), checked_id(account_id)
    body = await read_body(request, BudgetBody, services_of(request).config)
    amount = None if body.budget is None else from_credits(body.budget, "budget")
    account = await accounts_of(request).admin(
        lambda admin: admin.organizations.set_budget(by, wanted, amount, body.period)
    )
    return json_response(budget_reply(account, time.time()))


@router.get("/prices", responses=answers_read(PricesReply))
async def list_prices(request: Request) -> Response:
    """Credits per token: of each model with its own price, and the default."""
    accounts = accounts_of(request)
    prices = await accounts.admin(lambda admin: admin.organizations.list_prices())
    data = [price_reply(model, price) for model, price in prices.items()]
    return json_response({"object": "list", "data": data, "default": price_reply("*", accounts.default_price)})


@router.post("/prices/{model:path}", responses=answers(PriceReply), openapi_extra=takes(PriceBody))
async def set_price(request: Request, model: str) -> Response:
    """Sets the price from the next reservation on; requests in flight keep their price."""
    by = identity_of(request)
    body = await read_body(request, PriceBody, services_of(request).config)
    price = Price(body.input, body.cached_input, body.output)
    await accounts_of(request).admin(lambda admin: admin.organizations.set_price(by, model, price))
    return json_response(price_reply(model, price))


async def _account(request: Request, account_id: str) -> AccountRecord:
    by, wanted = identity_of(request), checked_id(account_id)
    return await accounts_of(request).admin(lambda admin: admin.organizations.get_account(by, wanted))


async def _admin_key(request: Request, key_id: str) -> KeyRecord:
    by, wanted = identity_of(request), checked_id(key_id)
    key = await accounts_of(request).admin(lambda admin: admin.keys.get_key(by, wanted))
    if not is_admin_key(key):
        raise NotFound("no such organisation, project or key")
    return key
