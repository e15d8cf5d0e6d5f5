"""`/v1/account` and the usage reads on the main listener: a key sees itself and the keys below it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.records import Limits
from tests.server.conftest import Served, chat
from tests.server.test_accounts import CHAT
from tests.support.bank import Bank

KEEPER = frozenset({Scope.INFERENCE, Scope.USAGE, Scope.KEYS})
DAY_S = 86_400


async def call(served: Served, method: str, path: str, key: dict[str, str], body: object = None) -> Any:
    async with served.client() as client:
        return await client.request(method, path, json=body, headers=key)


async def test_without_accounts_there_is_nothing_here(served: Served) -> None:
    for path in ("/v1/account", "/v1/account/keys", "/v1/organization/usage/completions", "/v1/organization/costs"):
        response = await served.get(path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "accounts_off")
    assert (await served.get("/playground/about")).json()["accounts"] is False


async def test_a_key_reads_its_rights_balance_and_limits(bank: Bank) -> None:
    key = await bank.key(credits=1000, budget=500_000_000, limits=Limits(requests=5))
    used = (await bank.served.post(CHAT, chat(max_tokens=50), key)).json()["usage"]["total_tokens"]
    reply = (await bank.served.get("/v1/account", key)).json()
    assert reply["scopes"] == ["inference", "usage"]
    assert reply["balance"] == str(500 - used)
    assert [each["kind"] for each in reply["accounts"]] == ["organization", "project", "key"]
    assert [each["balance"] for each in reply["accounts"]] == [str(1000 - used), None, str(500 - used)]
    assert reply["purses"] == reply["accounts"]
    assert reply["rate_limits"]["requests"]["limit"] == 5
    assert reply["rate_limits"]["requests"]["remaining"] == 4
    assert reply["rate_limits"]["input_tokens"] is None
    assert reply["prices"] == {"model": "nano", "input": "1", "cached_input": "0.1", "output": "1"}
    assert reply["key"]["status"] == "active"
    assert reply["key"]["limits"]["max_requests_per_1_minute"] == 5
    assert (await bank.served.get("/playground/about")).json()["accounts"] is True


async def test_a_key_without_the_usage_scope_learns_nothing_of_its_organisation(bank: Bank) -> None:
    key = await bank.key(scopes=frozenset({Scope.INFERENCE}))
    reply = (await bank.served.get("/v1/account", key)).json()
    assert [each["kind"] for each in reply["accounts"]] == ["key"]
    assert reply["balance"] is None
    for path in ("usage/completions", "costs"):
        assert (await bank.served.get(f"/v1/organization/{path}?start_time=0", key)).status_code == 403
    assert (await bank.served.get("/v1/account/keys", key)).status_code == 403


async def test_usage_and_costs_are_those_of_the_callers_project(bank: Bank) -> None:
    stranger, key = await bank.key(), await bank.key()
    await bank.served.post(CHAT, chat("something longer by far"), stranger)
    used = (await bank.served.post(CHAT, chat(), key)).json()["usage"]
    today = int(time.time()) // DAY_S * DAY_S
    query = f"start_time={today}&group_by=model&group_by[]=api_key_id"
    page = (await bank.served.get(f"/v1/organization/usage/completions?{query}", key)).json()
    assert (page["object"], page["has_more"], page["next_page"]) == ("page", False, None)
    (line,) = page["data"][0]["results"]
    assert (line["input_tokens"], line["output_tokens"]) == (used["prompt_tokens"], used["completion_tokens"])
    assert (line["model"], line["num_model_requests"], line["project_id"]) == ("nano", 1, None)
    own = (await bank.served.get("/v1/account", key)).json()["key"]["id"]
    assert line["api_key_id"] == own
    page = (await bank.served.get(f"/v1/organization/costs?start_time={today}&group_by=line_item", key)).json()
    (line,) = page["data"][0]["results"]
    assert line["amount"]["micro_credits"] == used["total_tokens"] * 1_000_000
    assert line["line_item"] == "nano"
    foreign = f"/v1/organization/usage/completions?start_time={today}&api_key_ids={own}"
    assert (await bank.served.get(foreign, stranger)).json()["data"][0]["results"] == []


async def test_usage_is_read_page_by_page(bank: Bank) -> None:
    key = await bank.key()
    path = "/v1/organization/usage/completions"
    query = f"start_time=0&end_time={10 * DAY_S}&limit=4"
    starts, page = [], ""
    for _ in range(3):
        reply = (await bank.served.get(f"{path}?{query}{page}", key)).json()
        starts += [bucket["start_time"] // DAY_S for bucket in reply["data"]]
        page = f"&page={reply['next_page']}"
    assert starts == list(range(10))
    assert reply["has_more"] is False
    hours = (await bank.served.get(f"{path}?start_time=1800&end_time={DAY_S}&bucket_width=1h", key)).json()
    assert len(hours["data"]) == 24


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "start_time"),
        ("start_time=x", "start_time"),
        ("start_time=0&bucket_width=1m", "bucket_width"),
        ("start_time=0&group_by=batch", "group_by"),
        ("start_time=0&limit=0", "limit"),
        ("start_time=0&bucket_width=1h&limit=169", "limit"),
        ("start_time=0&page=page_5", "page"),
        ("start_time=0&page=%27", "page"),
        ("start_time=9&end_time=3", "start_time"),
        ("start_time=0&start_time=1", "start_time"),
        ("start_time=0&grop_by=model", "grop_by"),
        ("start_time=-1", "start_time"),
        ("start_time=99999999999999999999", "start_time"),
    ],
)
async def test_a_query_that_cannot_be_read_is_a_400_that_names_it(bank: Bank, query: str, param: str) -> None:
    response = await bank.served.get(f"/v1/organization/usage/completions?{query}", await bank.key())
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)


async def test_keys_are_created_listed_rotated_and_revoked_below_the_callers_key(bank: Bank) -> None:
    key = await bank.key(scopes=KEEPER)
    body = {"name": "laptop", "budget": "12.5", "expires_in_seconds": 3600, "models": ["nano"]}
    made = (await call(bank.served, "POST", "/v1/account/keys", key, body)).json()
    assert made["value"].startswith("qs-")
    assert made["redacted_value"] == made["value"][:9] + "…"
    assert (made["budget"], made["balance"], made["scopes"]) == ("12.5", "12.5", ["inference", "usage"])
    laptop = {"authorization": f"Bearer {made['value']}"}
    assert (await bank.served.post(CHAT, chat(max_tokens=5), laptop)).json()["error"]["code"] == "insufficient_quota"
    listed = (await bank.served.get("/v1/account/keys", key)).json()
    assert {one["name"] for one in listed["data"]} == {"key", "laptop"}
    assert "value" not in str(listed).replace("redacted_value", "")
    path = f"/v1/account/keys/{made['id']}"
    rotated = (await call(bank.served, "POST", f"{path}/rotate", key)).json()
    assert rotated["id"] == made["id"]
    assert rotated["value"] != made["value"]
    laptop = {"authorization": f"Bearer {rotated['value']}"}
    assert (await bank.served.get("/v1/models", laptop)).status_code == 200
    gone = await call(bank.served, "DELETE", path, key)
    assert gone.json() == {"object": "organization.project.api_key.deleted", "id": made["id"], "deleted": True}
    assert (await bank.served.get(path, key)).json()["status"] == "revoked"
    assert (await bank.served.post(CHAT, chat(), laptop)).status_code == 401


async def test_a_list_of_keys_comes_in_pages(bank: Bank) -> None:
    key = await bank.key(scopes=KEEPER)
    for number in range(3):
        await call(bank.served, "POST", "/v1/account/keys", key, {"name": f"k{number}"})
    first = (await bank.served.get("/v1/account/keys?limit=2", key)).json()
    rest = (await bank.served.get(f"/v1/account/keys?limit=2&after={first['last_id']}", key)).json()
    assert (len(first["data"]), first["has_more"], len(rest["data"]), rest["has_more"]) == (2, True, 2, False)
    assert (await bank.served.get("/v1/account/keys?after=key_x", key)).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "a", "scopes": []},
        {"name": "a", "scopes": ["root"]},
        {"name": "a", "budget": "-1"},
        {"name": "a", "budget": 5},
        {"name": "a", "expires_in": 5},
        {"name": "a", "expires_in_seconds": 0},
        {"name": "a\nb"},
        {"name": "a", "models": ["two words"]},
        {"name": "a", "limits": {"max_requests_per_1_minute": -1}},
    ],
)
async def test_an_invalid_key_request_is_a_400(bank: Bank, body: dict[str, object]) -> None:
    response = await call(bank.served, "POST", "/v1/account/keys", await bank.key(scopes=KEEPER), body)
    assert response.status_code == 400


async def test_a_key_cannot_grant_rights_it_does_not_have(bank: Bank) -> None:
    key = await bank.key(scopes=KEEPER, models=frozenset({"nano"}))
    for extra in ({"scopes": ["admin"]}, {"scopes": ["metrics"]}, {"models": ["other"]}, {}):
        response = await call(bank.served, "POST", "/v1/account/keys", key, {"name": "a", **extra})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "permission_denied")


async def test_an_admin_key_has_no_power_over_others_here(bank: Bank) -> None:
    first = await bank.accounts.bootstrap()
    assert first is not None
    admin = {"authorization": f"Bearer {first.secret}"}
    await bank.served.post(CHAT, chat(), await bank.key())
    listed = (await bank.served.get("/v1/account/keys", admin)).json()["data"]
    assert [one["id"] for one in listed] == [first.id]
    today = int(time.time()) // DAY_S * DAY_S
    page = (await bank.served.get(f"/v1/organization/usage/completions?start_time={today}", admin)).json()
    assert page["data"][0]["results"] == []
    other = await bank.accounts.admin(lambda admin: admin.organizations.list_accounts(OPERATOR, "key"))
    for key in other:
        if key.id != first.id:
            assert (await bank.served.get(f"/v1/account/keys/{key.id}", admin)).status_code == 404


async def test_allow_names_every_method_of_a_path(bank: Bank) -> None:
    async with bank.served.client() as client:
        assert (await client.put("/v1/account/keys")).headers["allow"] == "GET, POST"
        assert (await client.put("/v1/account/keys/x")).headers["allow"] == "GET, DELETE"
        assert (await client.put("/v1/models/a/b")).headers["allow"] == "GET, DELETE"
        assert (await client.put("/playground/about")).headers["allow"] == "GET"
