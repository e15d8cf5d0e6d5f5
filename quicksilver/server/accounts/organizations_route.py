"""`/v1/organizations` and `/v1/organization/users`, on the admin listener: organisations, credits and users."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.accounts.records import MICRO
from quicksilver.server.accounts.reply_wire import (
    NewOrganizationReply,
    OrganizationList,
    OrganizationReply,
    UserList,
    UserReply,
)
from quicksilver.server.accounts.usage_wire import PageQuery, WithinQuery
from quicksilver.server.accounts.views import organization_reply, user_reply
from quicksilver.server.accounts.wire import CreditsBody, OrganizationBody, OrganizationChangeBody, UserBody
from quicksilver.server.http.body import read_body
from quicksilver.server.http.guard import accounts_of, identity_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import DeletedReply
from quicksilver.server.http.openapi import answers, answers_read, takes
from quicksilver.server.http.query import asks, checked_id, list_page, read_query
from quicksilver.server.services import services_of

router = APIRouter(prefix="/v1", tags=["organizations"])


@router.get("/organizations", responses=answers_read(OrganizationList), openapi_extra=asks(PageQuery))
async def list_organizations(request: Request) -> Response:
    by, query, now = identity_of(request), read_query(request, PageQuery), time.time()
    orgs = await accounts_of(request).admin(lambda admin: admin.organizations.list_accounts(by, "org"))
    return json_response(list_page([organization_reply(org, now) for org in orgs], [org.id for org in orgs], query))


@router.post("/organizations", responses=answers(NewOrganizationReply), openapi_extra=takes(OrganizationBody))
async def create_organization(request: Request) -> Response:
    """Creates an organisation with a project named `default`, and with the credits of a sign-up by default."""
    by = identity_of(request)
    body = await read_body(request, OrganizationBody, services_of(request).config)
    accounts = accounts_of(request)
    org = await accounts.admin(lambda admin: admin.organizations.create_org(by, body.name, body.credits))
    (project,) = await accounts.admin(lambda admin: admin.organizations.list_accounts(by, "project", org.id))
    reply: NewOrganizationReply = {**organization_reply(org, time.time()), "default_project_id": project.id}
    return json_response(reply)


@router.get("/organizations/{org_id}", responses=answers_read(OrganizationReply))
async def get_organization(request: Request, org_id: str) -> Response:
    return await _organization(request, checked_id(org_id))


@router.post(
    "/organizations/{org_id}", responses=answers(OrganizationReply), openapi_extra=takes(OrganizationChangeBody)
)
async def change_organization(request: Request, org_id: str) -> Response:
    """Renames an organisation, or disables or enables it with everything below it."""
    by, wanted = identity_of(request), checked_id(org_id)
    body = await read_body(request, OrganizationChangeBody, services_of(request).config)
    await _organization(request, wanted)
    accounts = accounts_of(request)
    if body.name is not None:
        name = body.name
        await accounts.admin(lambda admin: admin.organizations.rename(by, wanted, name))
    if body.status == "disabled":
        await accounts.admin(lambda admin: admin.organizations.disable(by, wanted))
    elif body.status == "active":
        await accounts.admin(lambda admin: admin.organizations.enable(by, wanted))
    return await _organization(request, wanted)


@router.post("/organizations/{org_id}/credits", responses=answers(OrganizationReply), openapi_extra=takes(CreditsBody))
async def add_credits(request: Request, org_id: str) -> Response:
    """Adds credits once per `reference`; the same reference again is a 409."""
    by, wanted = identity_of(request), checked_id(org_id)
    body = await read_body(request, CreditsBody, services_of(request).config)
    org = await accounts_of(request).admin(
        lambda admin: admin.organizations.add_credits(by, wanted, body.credits * MICRO, body.reference)
    )
    return json_response(organization_reply(org, time.time()))


@router.get("/organization/users", responses=answers_read(UserList), openapi_extra=asks(WithinQuery))
async def list_users(request: Request) -> Response:
    by, query = identity_of(request), read_query(request, WithinQuery)
    users = await accounts_of(request).admin(lambda admin: admin.organizations.list_users(by, query.organization_id))
    return json_response(list_page([user_reply(user) for user in users], [user.id for user in users], query))


@router.post("/organization/users", responses=answers(UserReply), openapi_extra=takes(UserBody))
async def create_user(request: Request) -> Response:
    by = identity_of(request)
    body = await read_body(request, UserBody, services_of(request).config)
    org_id = body.organization_id or by.org_id
    user = await accounts_of(request).admin(lambda admin: admin.organizations.create_user(by, org_id, body.email))
    return json_response(user_reply(user))


@router.get("/organization/users/{user_id}", responses=answers_read(UserReply))
async def get_user(request: Request, user_id: str) -> Response:
    by, wanted = identity_of(request), checked_id(user_id)
    return json_response(
        user_reply(await accounts_of(request).admin(lambda admin: admin.organizations.get_user(by, wanted)))
    )


@router.delete("/organization/users/{user_id}", responses=answers_read(DeletedReply))
async def remove_user(request: Request, user_id: str) -> Response:
    """Removes a user and revokes the user's keys with all keys below them."""
    by, wanted = identity_of(request), checked_id(user_id)
    await accounts_of(request).admin(lambda admin: admin.organizations.remove_user(by, wanted))
    return json_response({"object": "organization.user.deleted", "id": wanted, "deleted": True})


async def _organization(request: Request, org_id: str) -> Response:
    by = identity_of(request)
    org = await accounts_of(request).admin(lambda admin: admin.organizations.get_account(by, org_id, "org"))
    return json_response(organization_reply(org, time.time()))
