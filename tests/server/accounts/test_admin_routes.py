"""The admin listener: its key, OpenAI's admin client, and the routes that OpenAI does not have."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI, ConflictError, NotFoundError

from quicksilver.accounts.identity import Scope
from quicksilver.server.admin_app import build_admin_app
from tests.server.conftest import Served, chat, shared_app
from tests.server.test_accounts import CHAT
from tests.support.bank import Bank

MISSING = "0" * 24
DAY_S = 86_400


@cache
def shared_admin_app() -> FastAPI:
    """One for all tests: building it takes longer than most of them, and its Services are its only state."""
    return build_admin_app(shared_app().state.services)


class Office:
    """The admin app and a client that holds the first admin key."""

    def __init__(self, bank: Bank, secret: str) -> None:
        self.bank = bank
        self.key = {"authorization": f"Bearer {secret}"}
        self.app = shared_admin_app()
        self.app.state.services = bank.served.services
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://localhost")
        self.openai = AsyncOpenAI(
            base_url="http://localhost/v1", api_key="none", admin_api_key=secret, http_client=self.http, max_retries=0
        )

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        return await self.http.request(method, path, json=body, headers={**self.key, **headers})

    async def made(self, path: str, body: object) -> dict[str, Any]:
        response = await self.ask("POST", path, body)
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply


@pytest.fixture
async def office(bank: Bank) -> AsyncIterator[Office]:
    first = await bank.accounts.bootstrap()
    assert first is not None
    office = Office(bank, first.secret)
    yield office
    await office.http.aclose()


async def test_only_an_admin_key_opens_the_admin_listener(office: Office) -> None:
    everything = frozenset(Scope) - {Scope.ADMIN}
    tenant = await office.bank.key(scopes=everything)
    document = office.app.openapi()
    checked = 0
    for path, operations in document["paths"].items():
        for method in operations:
            url = path.replace("{model}", "nano").replace("{", "").replace("}", "")
            statuses = []
            for key in ({}, {"authorization": "Bearer qs-no"}, tenant):
                statuses.append((await office.http.request(method, url, content=b"{}", headers=key)).status_code)
            public = path in ("/health", "/ready")
            wanted = [200, 200, 200] if public else [401, 401, 200 if path == "/metrics" else 403]
            assert statuses == wanted, (method, path)
            checked += 1
    assert checked > 30


async def test_without_accounts_metrics_need_no_key_and_admin_routes_are_404(served: Served) -> None:
    transport = httpx.ASGITransport(app=build_admin_app(served.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/metrics")).status_code == 200
        refused = await client.get("/v1/organization/projects")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "accounts_off")


async def test_an_organisation_gets_sign_up_credits_and_more(office: Office) -> None:
    org = await office.made("/v1/organizations", {"name": "acme"})
    assert (org["granted"], org["balance"], org["status"]) == ("10000000", "10000000", "active")
    projects = (await office.ask("GET", f"/v1/organization/projects?organization_id={org['id']}")).json()["data"]
    assert [(one["id"], one["name"]) for one in projects] == [(org["default_project_id"], "default")]
    path = f"/v1/organizations/{org['id']}"
    paid = await office.made(f"{path}/credits", {"credits": 500, "reference": "invoice 7"})
    assert paid["balance"] == "10000500"
    again = await office.ask("POST", f"{path}/credits", {"credits": 500, "reference": "invoice 7"})
    assert again.status_code == 409
    assert (await office.ask("GET", path)).json()["balance"] == "10000500"
    renamed = await office.made(path, {"name": "Acme Ltd", "status": "disabled"})
    assert (renamed["name"], renamed["status"]) == ("Acme Ltd", "disabled")
    assert (await office.made(path, {"status": "active"}))["status"] == "active"
    names = {one["name"] for one in (await office.ask("GET", "/v1/organizations")).json()["data"]}
    assert names == {"operators", "Acme Ltd"}


async def test_openais_client_manages_projects(office: Office) -> None:
    projects = office.openai.admin.organization.projects
    made = await projects.create(name="search")
    assert (made.object, made.status, made.archived_at) == ("organization.project", "active", None)
    assert (await projects.update(made.id, name="find")).name == "find"
    assert {one.name async for one in projects.list(limit=1)} == {"default", "find"}
    archived = await projects.archive(made.id)
    assert archived.status == "archived"
    assert archived.archived_at is not None
    restored = await office.made(f"/v1/organization/projects/{made.id}/unarchive", None)
    assert restored["status"] == "active"
    with pytest.raises(NotFoundError):
        await projects.retrieve(f"proj_{MISSING}")


async def test_a_project_consents_to_hybrid_routing_and_withdraws(office: Office) -> None:
    made = await office.made("/v1/organization/projects", {"name": "search"})
    assert made["may_leave"] is False
    path = f"/v1/organization/projects/{made['id']}"
    changed = await office.made(path, {"may_leave": True})
    assert (changed["may_leave"], changed["name"]) == (True, "search")
    assert (await office.made(path, {"name": "find"}))["may_leave"] is True
    assert (await office.made(path, {"may_leave": False}))["may_leave"] is False
    refused = await office.ask("POST", path, {"may_leave": "yes"})
    assert refused.status_code == 400


async def test_openais_client_lists_and_revokes_keys_of_a_project(office: Office) -> None:
    project = await office.openai.admin.organization.projects.create(name="search")
    path = f"/v1/organization/projects/{project.id}/api_keys"
    user = await office.made("/v1/organization/users", {"email": "ada@example.org"})
    made = await office.made(path, {"name": "batch", "user_id": user["id"], "models": ["nano"]})
    bearer = {"authorization": f"Bearer {made['value']}"}
    assert (await office.bank.served.post(CHAT, chat(), bearer)).status_code == 200
    keys = office.openai.admin.organization.projects.api_keys
    (listed,) = [one async for one in keys.list(project.id)]
    assert (listed.id, listed.name, listed.owner.type) == (made["id"], "batch", "user")
    assert listed.owner.user is not None
    assert listed.owner.user.email == "ada@example.org"
    assert listed.last_used_at is not None
    changed = await office.made(f"{path}/{made['id']}", {"name": "nightly", "scopes": ["usage"]})
    assert (changed["name"], changed["scopes"], changed["models"]) == ("nightly", ["usage"], ["nano"])
    rotated = await office.made(f"{path}/{made['id']}/rotate", {"overlap_seconds": 60})
    assert len(rotated["redacted_value"].split()) == 2
    gone = await keys.delete(made["id"], project_id=project.id)
    assert (gone.deleted, gone.object) == (True, "organization.project.api_key.deleted")
    assert (await keys.retrieve(made["id"], project_id=project.id)).redacted_value
    with pytest.raises(NotFoundError):
        await keys.retrieve(made["id"], project_id=f"proj_{MISSING}")


async def test_openais_client_handles_users_and_admin_keys(office: Office) -> None:
    organization = office.openai.admin.organization
    user = await office.made("/v1/organization/users", {"email": "ada@example.org"})
    assert [one.email async for one in organization.users.list()] == ["ada@example.org"]
    assert (await organization.users.retrieve(user["id"])).object == "organization.user"
    assert (await organization.users.delete(user["id"])).deleted
    assert (await office.ask("GET", f"/v1/organization/users/{user['id']}")).json()["status"] == "removed"
    made = await organization.admin_api_keys.create(name="second", expires_in_seconds=60)
    assert made.value.startswith("qs-")
    assert {one.name async for one in organization.admin_api_keys.list()} == {"bootstrap admin", "second"}
    bearer = f"Bearer {made.value}"
    assert (await office.ask("GET", "/v1/organizations", authorization=bearer)).status_code == 200
    assert (await organization.admin_api_keys.delete(made.id)).deleted
    assert (await organization.admin_api_keys.retrieve(made.id)).name == "second"


async def test_openais_client_reads_usage_and_costs_of_all(office: Office) -> None:
    total = 0
    for _ in range(2):
        reply = await office.bank.served.post(CHAT, chat(), await office.bank.key())
        total += reply.json()["usage"]["total_tokens"]
    usage = office.openai.admin.organization.usage
    today = int(time.time()) // DAY_S * DAY_S
    page = await usage.completions(start_time=today, group_by=["project_id", "model"], bucket_width="1d")
    lines: list[Any] = list(page.data[0].results)
    assert len({line.project_id for line in lines}) == 2
    assert sum(line.input_tokens + line.output_tokens for line in lines) == total
    one = await usage.completions(start_time=today, project_ids=[str(lines[0].project_id)])
    assert one.data[0].results[0].input_tokens == lines[0].input_tokens  # type: ignore[union-attr]
    costs = await usage.costs(start_time=today, group_by=["line_item"])
    amount: Any = costs.data[0].results[0]
    assert (amount.amount.value, amount.amount.currency, amount.line_item) == (float(total), "credits", "nano")


async def test_budgets_and_limits_bind_from_the_next_request_on(office: Office) -> None:
    key = await office.bank.key()
    key_id = (await office.bank.served.get("/v1/account", key)).json()["key"]["id"]
    budget = await office.made(f"/v1/organization/budgets/{key_id}", {"budget": "0.5", "period": "day"})
    assert (budget["budget"], budget["balance"], budget["period"]) == ("0.5", "0.5", "day")
    assert (await office.bank.served.post(CHAT, chat(), key)).json()["error"]["code"] == "insufficient_quota"
    assert (await office.made(f"/v1/organization/budgets/{key_id}", {"budget": None}))["budget"] is None
    limits = await office.made(f"/v1/organization/limits/{key_id}", {"max_requests_per_1_minute": 1})
    assert limits == (await office.ask("GET", f"/v1/organization/limits/{key_id}")).json()
    assert [(await office.bank.served.post(CHAT, chat(), key)).status_code for _ in range(2)] == [200, 429]
    org = await office.ask("POST", f"/v1/organization/budgets/{office.bank.org_id}", {"budget": "1"})
    assert (org.status_code, org.json()["error"]["param"]) == (400, "budget")


async def test_prices_are_read_and_hold_from_the_next_request_on(office: Office) -> None:
    prices = (await office.ask("GET", "/v1/organization/prices")).json()
    assert (prices["data"], prices["default"]["input"]) == ([], "1")
    body = {"input": 2_000_000, "cached_input": 0, "output": 3_000_000}
    assert (await office.made("/v1/organization/prices/nano", body))["output"] == "3"
    key = await office.bank.key()
    usage = (await office.bank.served.post(CHAT, chat(), key)).json()["usage"]
    assert await office.bank.spent() == 2 * usage["prompt_tokens"] + 3 * usage["completion_tokens"]
    bad = await office.ask("POST", "/v1/organization/prices/nano", {**body, "cached_input": 3_000_000})
    assert bad.status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/organizations", {"name": "a", "credits": -1}),
        ("/v1/organizations", {"nam": "a"}),
        ("/v1/organizations", {"name": "\x00"}),
        ("/v1/organization/users", {"email": ""}),
        ("/v1/organization/projects", {"name": "x" * 129}),
        ("/v1/organization/admin_api_keys", {"name": "a", "scopes": ["usage"]}),
        ("/v1/organization/prices/nano", {"input": 1}),
    ],
)
async def test_invalid_admin_requests_are_a_400(office: Office, path: str, body: dict[str, object]) -> None:
    response = await office.ask("POST", path, body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("odd", ["key_x", f"key_{MISSING}", "%00", "..%2f..", "' OR 1=1 --", "proj_%ff", "x" * 500])
async def test_ids_that_do_not_exist_are_404_everywhere(office: Office, odd: str) -> None:
    for method, path, body in (
        ("GET", "/v1/organizations/{}", None),
        ("POST", "/v1/organizations/{}/credits", {"credits": 1, "reference": "r"}),
        ("POST", "/v1/organization/projects/{}/archive", None),
        ("GET", "/v1/organization/projects/{}/api_keys", None),
        ("POST", "/v1/organization/projects/{}/api_keys", {"name": "a"}),
        ("DELETE", "/v1/organization/users/{}", None),
        ("DELETE", "/v1/organization/admin_api_keys/{}", None),
        ("GET", "/v1/organization/limits/{}", None),
        ("POST", "/v1/organization/budgets/{}", {"budget": "1"}),
    ):
        response = await office.ask(method, path.format(odd), body)
        assert response.status_code == 404, (method, path, response.text)


async def test_a_repeated_reference_is_a_conflict_for_openais_client(office: Office) -> None:
    org = await office.made("/v1/organizations", {"name": "acme", "credits": 0})
    path, body = f"/organizations/{org['id']}/credits", {"credits": 1, "reference": "r"}
    await office.openai.post(path, body=body, cast_to=object, options={"security": {"admin_api_key_auth": True}})
    with pytest.raises(ConflictError):
        await office.openai.post(path, body=body, cast_to=object, options={"security": {"admin_api_key_auth": True}})
