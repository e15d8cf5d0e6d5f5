"""Adapters over HTTP: their names, which caller may use them, and what reaches the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO

import pytest

from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.records import Price
from quicksilver.adapters import AdapterRef, stacked
from quicksilver.core import EngineClient
from quicksilver.errors import InvalidRequest
from quicksilver.server.adapters import AdapterEngine, ServedAdapter
from quicksilver.server.config import ModelCard
from quicksilver.server.services import ServedModel, name_table
from quicksilver.tuning.models import TunedModel, register
from tests.server.conftest import HELLO, Served, chat
from tests.server.endpoints.files.test_route import call
from tests.support.bank import Bank
from tests.support.fake_engine import INFO

CHAT = "/v1/chat/completions"
OLD, NEW = AdapterRef("a" * 64, "/adapters/old"), AdapterRef("b" * 64, "/adapters/new")


class Table:
    """An AdapterSource whose entries belong to a tenant."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, dict[str, ServedAdapter]] = {}

    def add(self, tenant: str, name: str, ref: AdapterRef, base: str = "nano") -> None:
        self.by_tenant.setdefault(tenant, {})[name] = ServedAdapter(name, base, ref, created=17, owned_by="acme")

    async def find(self, name: str, tenant: str) -> ServedAdapter | None:
        return self.by_tenant.get(tenant, {}).get(name)

    async def list(self, tenant: str) -> Sequence[ServedAdapter]:
        return list(self.by_tenant.get(tenant, {}).values())


@pytest.fixture
def table(served: Served) -> Table:
    return attach(served)


def attach(served: Served) -> Table:
    table = Table()
    served.engine.info = replace(INFO, supports_adapters=True)
    served.services = replace(served.services, adapters=table)
    served.app.state.services = served.services
    return table


async def ask(served: Served, model: str, headers: dict[str, str] | None = None) -> int:
    response = await served.post(CHAT, chat(model=model), headers)
    if response.status_code == 200:
        assert response.json()["model"] == model
        assert response.json()["choices"][0]["message"]["content"] == HELLO
    return response.status_code


async def test_a_name_selects_the_adapter_of_every_request(served: Served, table: Table) -> None:
    table.add("", "ft:nano:mine:1", OLD)
    assert await ask(served, "ft:nano:mine:1") == 200
    assert await ask(served, "nano") == 200
    assert [request.adapter for request in served.engine.seen] == [OLD, None]


async def test_all_routes_of_a_model_accept_the_name(served: Served, table: Table) -> None:
    table.add("", "nano:sql", OLD)
    bodies = {
        "/v1/completions": {"prompt": "a"},
        "/v1/fim/completions": {"prompt": "a", "suffix": "b"},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5},
        "/api/chat": {"messages": [{"role": "user", "content": "a"}], "stream": False},
    }
    for path, body in bodies.items():
        response = await served.post(path, {"model": "nano:sql", **body})
        assert response.status_code == 200, (path, response.text)
    assert [request.adapter for request in served.engine.seen] == [OLD] * len(bodies)


async def test_after_training_again_the_same_name_has_the_new_weights(served: Served, table: Table) -> None:
    for ref in (OLD, NEW):
        table.add("", "nano:sql", ref)
        assert await ask(served, "nano:sql") == 200
    assert [request.adapter for request in served.engine.seen] == [OLD, NEW]


async def test_replies_have_a_fingerprint_of_the_adapter(served: Served, table: Table) -> None:
    prints = []
    for ref in (OLD, NEW):
        table.add("", "nano:sql", ref)
        prints.append((await served.post(CHAT, chat(model="nano:sql"))).json()["system_fingerprint"])
    prints.append((await served.post(CHAT, chat(model="nano"))).json()["system_fingerprint"])
    assert len(set(prints)) == 3


async def test_lists_have_the_adapter_with_its_parent(served: Served, table: Table) -> None:
    table.add("", "nano:sql", OLD)
    for path in ("/v1/models", "/v1/chat/completions/models", "/v1/fim/completions/models"):
        entries = {entry["id"]: entry for entry in (await served.get(path)).json()["data"]}
        assert entries["nano:sql"]["parent"] == "nano"
        assert "parent" not in entries["nano"]
    entry = (await served.get("/v1/models/nano:sql")).json()
    assert (entry["created"], entry["owned_by"], entry["quicksilver"]["model"]) == (17, "acme", "nano:sql")
    assert (await served.get("/v1/models/nano:none")).status_code == 404


async def test_an_adapter_of_a_model_that_is_not_served_is_a_404(served: Served, table: Table) -> None:
    table.add("", "big:sql", OLD, base="big")
    assert await ask(served, "big:sql") == 404


async def test_an_engine_without_support_is_a_404_with_the_reason(served: Served, table: Table) -> None:
    table.add("", "nano:sql", OLD)
    served.engine.info = INFO
    response = await served.post(CHAT, chat(model="nano:sql"))
    assert response.status_code == 404
    assert "--no-cuda-graphs" in response.json()["error"]["message"]


async def test_another_project_gets_the_reply_of_a_name_that_does_not_exist(bank: Bank) -> None:
    table = attach(bank.served)
    mine = await bank.key()
    table.add(await tenant_of(bank, mine), "ft:nano:mine:1", OLD)
    other = await bank.key()
    assert await ask(bank.served, "ft:nano:mine:1", mine) == 200
    refused = await bank.served.post(CHAT, chat(model="ft:nano:mine:1"), other)
    unknown = await bank.served.post(CHAT, chat(model="ft:nano:mine:2"), other)
    assert refused.status_code == unknown.status_code == 404
    assert refused.json()["error"]["message"] == unknown.json()["error"]["message"].replace("mine:2", "mine:1")
    listed = [(await bank.served.get("/v1/models", key)).json()["data"] for key in (mine, other)]
    assert len(listed[0]) == len(listed[1]) + 1
    assert (await bank.served.get("/v1/models/ft:nano:mine:1", other)).status_code == 404


async def tenant_of(bank: Bank, headers: dict[str, str]) -> str:
    identity = await bank.accounts.authenticate(headers["authorization"].removeprefix("Bearer "))
    return identity.tenant


async def test_adapters_of_the_command_line_are_models(served: Served) -> None:
    engine: EngineClient = AdapterEngine("nano:sql", served.engine, OLD)
    served.engine.info = replace(INFO, supports_adapters=True)
    services = served.services
    others = {
        "nano:sql": ServedModel(ModelCard("nano:sql"), engine, services.tokenizer, services.template, base="nano")
    }
    names = name_table(("nano", "nano:sql"), services.config, {}, {"sql": "nano:sql"})
    served.services = served.app.state.services = replace(services, others=others, names=names)
    assert await ask(served, "nano:sql") == 200
    assert await ask(served, "sql") == 200
    assert [request.adapter for request in served.engine.seen] == [OLD, OLD]
    assert (await served.get("/v1/models/nano:sql")).json()["parent"] == "nano"


async def test_an_adapter_costs_what_its_base_costs(bank: Bank) -> None:
    table, key = attach(bank.served), await bank.key()
    table.add(await tenant_of(bank, key), "nano:sql", OLD)
    price = Price(input=3_000_000, cached=3_000_000, output=3_000_000)
    await bank.accounts.admin(lambda admin: admin.organizations.set_price(OPERATOR, "nano", price))
    spent = [await bank.spent()]
    for model in ("nano", "nano:sql"):
        assert await ask(bank.served, model, key) == 200
        spent.append(await bank.spent())
    assert spent[1] - spent[0] == spent[2] - spent[1] > 0


CONTENT = b"adapter" * 1000
NAME = "ft:nano:mine:0123456789ab"
MODELS = "/v1/models"


def model(name: str = NAME, sha256: str = "", base: str = "nano") -> TunedModel:
    return TunedModel(
        name, base, sha256 or hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), 4, "ftjob-1", 1_700_000_000
    )


async def add(served: Served, owner: str = "", tuned: TunedModel | None = None) -> None:
    tuned = tuned or model()
    await served.services.storage.run(lambda store: register(store, owner, tuned, BytesIO(CONTENT)))


async def test_a_tuned_model_is_listed_described_and_deleted(served: Served) -> None:
    await add(served)
    assert NAME in [each["id"] for each in (await served.get(MODELS)).json()["data"]]
    entry = (await served.get(f"{MODELS}/{NAME}")).json()
    assert (entry["id"], entry["parent"], entry["owned_by"], entry["created"]) == (NAME, "nano", "user", 1_700_000_000)
    deleted = await call(served, "DELETE", f"{MODELS}/{NAME}")
    assert deleted.json() == {"id": NAME, "object": "model", "deleted": True}
    assert (await served.get(f"{MODELS}/{NAME}")).status_code == 404
    assert await served.services.storage.run(lambda store: store.num_bytes("")) == 0


async def test_models_that_are_not_tuned_cannot_be_deleted(served: Served) -> None:
    await add(served)
    assert (await call(served, "DELETE", f"{MODELS}/nano")).status_code == 404


async def test_the_adapter_is_copied_to_disk_under_its_hash(served: Served) -> None:
    await add(served)
    found = await served.services.adapter_source.find(NAME, "")
    assert found is not None
    assert found.adapter.id == model().sha256
    with open(found.adapter.path, "rb") as file:
        assert file.read() == CONTENT


async def test_a_damaged_adapter_is_refused(served: Served) -> None:
    await add(served, tuned=model(sha256="0" * 64))
    with pytest.raises(InvalidRequest, match="damaged"):
        await served.services.adapter_source.find(NAME, "")


async def test_another_project_does_not_find_the_model(bank: Bank) -> None:
    mine = await bank.key()
    owner = (await bank.accounts.authenticate(mine["authorization"].split(" ")[1])).tenant
    other = await bank.key()
    await add(bank.served, owner)
    assert (await bank.served.get(f"{MODELS}/{NAME}", mine)).status_code == 200
    for headers in (other,):
        assert (await bank.served.get(f"{MODELS}/{NAME}", headers)).status_code == 404
        assert NAME not in (await bank.served.get(MODELS, headers)).text
        assert (await call(bank.served, "DELETE", f"{MODELS}/{NAME}", headers=headers)).status_code == 404
        body = {**chat(), "model": NAME}
        refused = await bank.served.post("/v1/chat/completions", body, headers)
        unknown = await bank.served.post("/v1/chat/completions", {**body, "model": "ft:nano:x:y"}, headers)
        assert refused.status_code == unknown.status_code == 404
        assert refused.json()["error"]["code"] == unknown.json()["error"]["code"]


async def test_a_tuned_model_of_an_adapter_is_served_with_both(served: Served) -> None:
    """The adapter of its base comes first, because the tuned one was trained on the two together."""
    skill = AdapterRef("a" * 64, "/adapters/skill")
    served.engine.info = replace(INFO, supports_adapters=True)
    services = served.services
    card, engine = ModelCard("nano:sql"), AdapterEngine("nano:sql", served.engine, skill)
    others = {"nano:sql": ServedModel(card, engine, services.tokenizer, services.template, base="nano")}
    names = name_table(("nano", "nano:sql"), services.config)
    served.services = served.app.state.services = replace(services, others=others, names=names)
    name = "ft:nano:sql:mine:0123456789ab"
    await add(served, tuned=model(name, base="nano:sql"))
    tuned = await served.services.adapter_source.find(name, "")
    assert tuned is not None
    for each in (name, "nano:sql", "nano"):
        assert (await served.post("/v1/chat/completions", chat(model=each))).status_code == 200
    assert [request.adapter for request in served.engine.seen] == [stacked(skill, tuned.adapter), skill, None]
    assert stacked(skill, tuned.adapter).parts == (skill, tuned.adapter)


async def test_a_proposed_model_is_not_served(served: Served) -> None:
    await add(served, tuned=replace(model(), is_proposed=True))
    assert (await served.get(f"{MODELS}/{NAME}")).status_code == 404
    assert NAME not in (await served.get(MODELS)).text
    assert (await served.post("/v1/chat/completions", chat(model=NAME))).status_code == 404
