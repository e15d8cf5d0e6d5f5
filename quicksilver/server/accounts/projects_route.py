"""`/v1/organization/projects` and the keys of a project, on the admin listener, in the form of OpenAI's admin API."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.accounts.identity import Identity
from quicksilver.accounts.records import KeyRecord
from quicksilver.errors import NotFound
from quicksilver.server.accounts.keys import change_key, draft_of, make_key, revoke_key, rotate_key
from quicksilver.server.accounts.reply_wire import (
    KeyList,
    KeyReply,
    NewKeyReply,
    ProjectList,
    ProjectReply,
)
from quicksilver.server.accounts.usage_wire import PageQuery, WithinQuery
from quicksilver.server.accounts.views import key_reply, project_reply
from quicksilver.server.accounts.wire import ProjectBody, ProjectChangeBody, ProjectKeyBody, RightsBody, RotateBody
from quicksilver.server.http.body import read_body, read_optional_body
from quicksilver.server.http.guard import accounts_of, identity_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import DeletedReply
from quicksilver.server.http.openapi import answers, answers_read, may_take, takes
from quicksilver.server.http.query import asks, checked_id, list_page, read_query
from quicksilver.server.services import services_of

if TYPE_CHECKING:
    from quicksilver.accounts.service import AdminService

router = APIRouter(prefix="/v1/organization/projects", tags=["projects"])


@router.get("", responses=answers_read(ProjectList), openapi_extra=asks(WithinQuery))
async def list_projects(request: Request) -> Response:
    by, query, now = identity_of(request), read_query(request, WithinQuery), time.time()
    within = query.organization_id
    projects = await accounts_of(request).admin(lambda admin: admin.organizations.list_accounts(by, "project", within))
    return json_response(list_page([project_reply(p, now) for p in projects], [p.id for p in projects], query))


@router.post("", responses=answers(ProjectReply), openapi_extra=takes(ProjectBody))
async def create_project(request: Request) -> Response:
    by = identity_of(request)
    body = await read_body(request, ProjectBody, services_of(request).config)
    org_id = body.organization_id or by.org_id
    project = await accounts_of(request).admin(lambda admin: admin.organizations.create_project(by, org_id, body.name))
    return json_response(project_reply(project, time.time()))


@router.get("/{project_id}", responses=answers_read(ProjectReply))
async def get_project(request: Request, project_id: str) -> Response:
    return await _project(request, checked_id(project_id))


@router.post("/{project_id}", responses=answers(ProjectReply), openapi_extra=takes(ProjectChangeBody))
async def change_project(request: Request, project_id: str) -> Response:
    """Changes the name of a project, or its consent to hybrid routing."""
    by, wanted = identity_of(request), checked_id(project_id)
    body = await read_body(request, ProjectChangeBody, services_of(request).config)
    await _project(request, wanted)
    name, may_leave = body.name, body.may_leave
    if name is not None:
        await accounts_of(request).admin(lambda admin: admin.organizations.rename(by, wanted, name))
    if may_leave is not None:
        await accounts_of(request).admin(lambda admin: admin.organizations.set_may_leave(by, wanted, may_leave))
    return await _project(request, wanted)


@router.post("/{project_id}/archive", responses=answers_read(ProjectReply))
async def archive_project(request: Request, project_id: str) -> Response:
    """Archives a project; its keys stop working."""
    by, wanted = identity_of(request), checked_id(project_id)
    await _project(request, wanted)
    await accounts_of(request).admin(lambda admin: admin.organizations.disable(by, wanted))
    return await _project(request, wanted)


@router.post("/{project_id}/unarchive", responses=answers_read(ProjectReply))
async def unarchive_project(request: Request, project_id: str) -> Response:
    by, wanted = identity_of(request), checked_id(project_id)
    await _project(request, wanted)
    await accounts_of(request).admin(lambda admin: admin.organizations.enable(by, wanted))
    return await _project(request, wanted)


@router.get("/{project_id}/api_keys", responses=answers_read(KeyList), openapi_extra=asks(PageQuery))
async def list_keys(request: Request, project_id: str) -> Response:
    by, wanted, query = identity_of(request), checked_id(project_id), read_query(request, PageQuery)
    keys = await accounts_of(request).admin(lambda admin: admin.keys.list_keys(by, wanted))
    now = time.time()
    return json_response(list_page([key_reply(key, now) for key in keys], [key.account.id for key in keys], query))


@router.post("/{project_id}/api_keys", responses=answers(NewKeyReply), openapi_extra=takes(ProjectKeyBody))
async def create_key(request: Request, project_id: str) -> Response:
    """Its `value` is shown here and never again."""
    by, wanted = identity_of(request), checked_id(project_id)
    body = await read_body(request, ProjectKeyBody, services_of(request).config)
    return json_response(await make_key(accounts_of(request), by, draft_of(body, wanted, time.time())))


@router.get("/{project_id}/api_keys/{key_id}", responses=answers_read(KeyReply))
async def get_key(request: Request, project_id: str, key_id: str) -> Response:
    return json_response(key_reply(await _key(request, project_id, key_id), time.time()))


@router.post("/{project_id}/api_keys/{key_id}", responses=answers(KeyReply), openapi_extra=takes(RightsBody))
async def change_rights(request: Request, project_id: str, key_id: str) -> Response:
    """Changes name, scopes or models of a key; keys below it lose the same rights."""
    body = await read_body(request, RightsBody, services_of(request).config)
    key = await _key(request, project_id, key_id)
    await change_key(accounts_of(request), identity_of(request), key, body)
    return json_response(key_reply(await _key(request, project_id, key_id), time.time()))


@router.post(
    "/{project_id}/api_keys/{key_id}/rotate", responses=answers(NewKeyReply), openapi_extra=may_take(RotateBody)
)
async def rotate(request: Request, project_id: str, key_id: str) -> Response:
    body = await read_optional_body(request, RotateBody, services_of(request).config)
    key = await _key(request, project_id, key_id)
    return json_response(
        await rotate_key(accounts_of(request), identity_of(request), key.account.id, body.overlap_seconds)
    )


@router.delete("/{project_id}/api_keys/{key_id}", responses=answers_read(DeletedReply))
async def revoke(request: Request, project_id: str, key_id: str) -> Response:
    key = await _key(request, project_id, key_id)
    return json_response(await revoke_key(accounts_of(request), identity_of(request), key.account.id))


async def _project(request: Request, project_id: str) -> Response:
    by = identity_of(request)
    project = await accounts_of(request).admin(lambda admin: admin.organizations.get_account(by, project_id, "project"))
    return json_response(project_reply(project, time.time()))


async def _key(request: Request, project_id: str, key_id: str) -> KeyRecord:
    by = identity_of(request)
    return await accounts_of(request).admin(
        lambda admin: _find_key(admin, by, checked_id(project_id), checked_id(key_id))
    )


def _find_key(admin: AdminService, by: Identity, project_id: str, key_id: str) -> KeyRecord:
    """The key, if it belongs to the project."""
    key = admin.keys.get_key(by, key_id)
    if key.account.path.split("/")[1] != project_id:
        raise NotFound("no such organisation, project or key")
    return key
