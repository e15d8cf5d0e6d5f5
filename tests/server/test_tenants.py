"""Two tenants: an object of one is the same 404 for the other as an object that does not exist."""

from __future__ import annotations

import time
from typing import Any

import pytest

from quicksilver.accounts.identity import Scope
from tests.server.conftest import Served, chat
from tests.server.test_accounts import CHAT
from tests.support.bank import Bank

EVERYTHING = frozenset(Scope) - {Scope.ADMIN}
MISSING = f"key_{'0' * 24}"


class Tenant:
    def __init__(self, served: Served, key: dict[str, str]) -> None:
        self.served = served
        self.key = key

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        async with self.served.client() as client:
            return await client.request(method, path, json=body, headers={**self.key, **headers})

    async def objects(self) -> dict[str, str]:
        """Ids of everything this tenant has."""
        made = (await self.ask("POST", "/v1/account/keys", {"name": "child"})).json()
        account = (await self.ask("GET", "/v1/account")).json()
        reply = (await self.ask("POST", CHAT, chat())).json()
        response = (await self.ask("POST", "/v1/responses", {"model": "nano", "input": "Hi"})).json()
        return {
            "key": account["key"]["id"],
            "child": made["id"],
            "project": account["project"]["id"],
            "organization": account["organization"]["id"],
            "chat": reply["id"],
            "response": response["id"],
        }


@pytest.fixture
async def tenants(bank: Bank) -> tuple[Tenant, Tenant]:
    first, second = [Tenant(bank.served, await bank.key(scopes=EVERYTHING)) for _ in range(2)]
    return first, second


OBJECT_ROUTES = (
    ("GET", "/v1/account/keys/{}"),
    ("POST", "/v1/account/keys/{}/rotate"),
    ("DELETE", "/v1/account/keys/{}"),
    ("GET", "/v1/responses/{}"),
    ("DELETE", "/v1/responses/{}"),
    ("POST", "/v1/responses/{}/cancel"),
    ("GET", "/v1/chat/completions/{}"),
    ("DELETE", "/v1/chat/completions/{}"),
    ("GET", "/v1/organization/projects/{}"),
    ("GET", "/v1/organization/projects/{}/api_keys"),
    ("GET", "/v1/organizations/{}"),
)


async def test_foreign_objects_are_the_same_404_as_missing_ones(tenants: tuple[Tenant, Tenant]) -> None:
    mine, theirs = tenants
    for name, foreign in (await theirs.objects()).items():
        for method, path in OBJECT_ROUTES:
            found = await mine.ask(method, path.format(foreign))
            missing = await mine.ask(method, path.format(MISSING))
            assert found.status_code == 404, (method, path, name)
            assert found.content == missing.content
    account = (await theirs.ask("GET", "/v1/account")).json()
    assert account["key"]["status"] == "active", "nothing was revoked or rotated on the way"


async def test_a_child_key_cannot_reach_its_parent_or_siblings(tenants: tuple[Tenant, Tenant]) -> None:
    maker, _ = tenants
    bodies = [{"name": name, "scopes": ["keys", "usage"]} for name in ("one", "two")]
    one, two = [(await maker.ask("POST", "/v1/account/keys", body)).json() for body in bodies]
    child = Tenant(maker.served, {"authorization": f"Bearer {one['value']}"})
    above = (await maker.ask("GET", "/v1/account")).json()["key"]["id"]
    for foreign in (above, two["id"]):
        for method, path in OBJECT_ROUTES[:3]:
            assert (await child.ask(method, path.format(foreign))).status_code == 404
    listed = (await child.ask("GET", "/v1/account/keys")).json()["data"]
    assert [key["id"] for key in listed] == [one["id"]]


async def test_usage_of_other_tenants_is_never_returned(tenants: tuple[Tenant, Tenant]) -> None:
    mine, theirs = tenants
    foreign = await theirs.objects()
    today = int(time.time()) // 86_400 * 86_400
    for kind in ("usage/completions", "costs"):
        for wanted in (f"api_key_ids={foreign['key']}", f"project_ids={foreign['project']}", "group_by=project_id"):
            page = (await mine.ask("GET", f"/v1/organization/{kind}?start_time={today}&{wanted}")).json()
            assert page["data"][0]["results"] == [], wanted


async def test_an_idempotency_key_of_another_tenant_is_free(tenants: tuple[Tenant, Tenant], bank: Bank) -> None:
    replies = [await tenant.ask("POST", CHAT, chat(), **{"idempotency-key": "same"}) for tenant in tenants]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].json()["id"] != replies[1].json()["id"]
    assert all("idempotent-replayed" not in reply.headers for reply in replies)
    assert len(bank.served.engine.seen) == 2


async def test_keys_of_one_project_share_a_salt_and_other_projects_never_do(
    tenants: tuple[Tenant, Tenant], bank: Bank
) -> None:
    mine, theirs = tenants
    made = (await mine.ask("POST", "/v1/account/keys", {"name": "child"})).json()
    child = Tenant(mine.served, {"authorization": f"Bearer {made['value']}"})
    for tenant in (mine, child, theirs):
        await tenant.ask("POST", CHAT, chat())
        await tenant.ask("POST", CHAT, {"model": "nano", "messages": chat()["messages"], "choice": ["a", "b"]})
    salts = [request.tenant for request in bank.served.engine.seen]
    scored = [request.tenant for request in bank.served.engine.scored]
    assert salts == scored
    assert salts[0] == salts[1] != salts[2]
    assert all(salts)


async def test_a_project_draws_on_its_own_credits_only(tenants: tuple[Tenant, Tenant]) -> None:
    mine, theirs = tenants
    before = (await theirs.ask("GET", "/v1/account")).json()["balance"]
    await mine.ask("POST", CHAT, chat())
    assert (await theirs.ask("GET", "/v1/account")).json()["balance"] == before
