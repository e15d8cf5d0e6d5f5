"""Tuned models in the model lists: visible to their project, copied to disk on first use, deleted."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from io import BytesIO

import pytest

from quicksilver.adapters import AdapterRef, stacked
from quicksilver.errors import InvalidRequest
from quicksilver.server.adapters import AdapterEngine
from quicksilver.server.config import ModelCard
from quicksilver.server.services import ServedModel, name_table
from quicksilver.tuning.models import TunedModel, register
from tests.server.conftest import Served, chat
from tests.server.endpoints.files.test_route import call
from tests.support.bank import Bank
from tests.support.fake_engine import INFO

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
