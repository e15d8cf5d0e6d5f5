"""Several models in one server: names, companions, lists, charges and metrics per model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from quicksilver.accounts.schema import ledger
from quicksilver.core import EngineHealth, EngineInfo, EngineState
from quicksilver.errors import EngineUnavailable, InvalidRequest, ModelNotFound
from quicksilver.server.config import ModelCard, ServerConfig
from quicksilver.server.services import (
    NameTable,
    RouteKind,
    ServedModel,
    name_table,
    parse_served_names,
)
from quicksilver.text.chat import ChatTemplate
from tests.server.conftest import Served, chat, says
from tests.server.http.test_metrics import scrape
from tests.support.bank import Bank
from tests.support.fake_engine import INFO, FakeEngine
from tests.support.small_tokenizer import small_tokenizer

CHAT = "/v1/chat/completions"
REGION = {"messages": [{"role": "user", "content": "<|code_to_edit|>\nx\n<|/code_to_edit|>"}]}


class LoadedOnDemand(FakeEngine):
    """A model that is loaded by the first request, or not at all while `refusal` is set."""

    is_loaded = False
    refusal: EngineUnavailable | None = None

    async def load(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.is_loaded = True

    @property
    def info(self) -> EngineInfo:
        if not self.is_loaded:
            raise EngineUnavailable("not loaded yet")
        return self._info

    @info.setter
    def info(self, info: EngineInfo) -> None:
        self._info = info

    def health(self) -> EngineHealth:
        return EngineHealth(EngineState.READY if self.is_loaded else EngineState.UNLOADED)


def add_models(served: Served, companions: dict[str, str], served_names: dict[str, str]) -> dict[str, LoadedOnDemand]:
    """Adds the models `edit` and `big` to a server whose default model is `nano`."""
    tokenizer = small_tokenizer()
    template = ChatTemplate.own(tokenizer)
    engines = {
        name: LoadedOnDemand(says(f"I am {name}"), info=replace(INFO, model=name, context_len=2048))
        for name in ("edit", "big")
    }
    others = {name: ServedModel(ModelCard(name, name), engine, tokenizer, template) for name, engine in engines.items()}
    names = name_table(("nano", *others), served.services.config, companions, served_names)
    served.services = replace(served.services, others=others, names=names)
    served.app.state.services = served.services
    return engines


@pytest.fixture
def engines(served: Served) -> Iterator[dict[str, LoadedOnDemand]]:
    added = add_models(served, {"nano": "edit"}, {"gpt-4o": "big"})
    yield added
    assert not any(engine.num_open for engine in added.values())


async def content(served: Served, **fields: object) -> str:
    response = await served.post(CHAT, chat(**fields))
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def test_the_name_selects_the_model_and_is_echoed(served: Served, engines: dict[str, LoadedOnDemand]) -> None:
    served.engine.script = says("I am nano")
    assert await content(served, model="nano") == "I am nano"
    assert await content(served, model="mercury-2") == "I am nano"
    assert await content(served, model="big") == "I am big"
    assert await content(served, model="gpt-4o") == "I am big"
    assert (await served.post(CHAT, chat(model="gpt-4o"))).json()["model"] == "gpt-4o"


async def test_without_a_name_the_default_model_answers(served: Served, engines: dict[str, LoadedOnDemand]) -> None:
    for model in ("", None):
        reply = (await served.post(CHAT, chat(model=model))).json()
        assert reply["model"] == "nano"
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert (await served.post(CHAT, body)).json()["model"] == "nano"
    assert len(served.engine.seen) == 3


@pytest.mark.parametrize("name", ["nano", "mercury-edit-2", "edit", ""])
@pytest.mark.parametrize("path", ["/v1/fim/completions", "/v1/edit/completions", "/v1/completions"])
async def test_code_routes_are_answered_by_the_companion(
    served: Served, engines: dict[str, LoadedOnDemand], path: str, name: str
) -> None:
    body = {**REGION, "prompt": "x", "suffix": "y", "model": name}
    assert (await served.post(path, body)).status_code == 200
    assert (len(engines["edit"].seen), len(served.engine.seen)) == (1, 0)


async def test_a_completion_without_a_suffix_is_not_code(served: Served, engines: dict[str, LoadedOnDemand]) -> None:
    assert (await served.post("/v1/completions", {"prompt": "x", "model": "nano"})).status_code == 200
    assert (len(engines["edit"].seen), len(served.engine.seen)) == (0, 1)


async def test_an_unknown_name_is_answered_with_the_names_that_exist(
    served: Served, engines: dict[str, LoadedOnDemand]
) -> None:
    response = await served.post(CHAT, chat(model="gpt-5"))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert "`nano`, `edit`, `big`" in response.json()["error"]["message"]


async def test_the_lists_are_true_while_models_come_and_go(served: Served, engines: dict[str, LoadedOnDemand]) -> None:
    async def entries(path: str = "/v1/models") -> dict[str, dict[str, object]]:
        return {entry["id"]: entry for entry in (await served.get(path)).json()["data"]}

    before = await entries()
    assert before["big"]["quicksilver"] == {"model": "big", "state": "unloaded"}
    assert before["gpt-4o"]["quicksilver"] == {"model": "big", "state": "unloaded"}
    assert "context_length" not in before["big"], "unknown before the first load"
    await content(served, model="big")
    after = await entries()
    assert after["big"]["quicksilver"] == {"model": "big", "state": "ready"}
    assert after["big"]["context_length"] == 2048
    code = await entries("/v1/edit/completions/models")
    assert (
        code["mercury-edit-2"]["quicksilver"] == code["nano"]["quicksilver"] == {"model": "edit", "state": "unloaded"}
    )


async def test_lists_in_other_forms_include_models_that_were_never_loaded(
    served: Served, engines: dict[str, LoadedOnDemand]
) -> None:
    listed = (await served.get("/v1/models", {"anthropic-version": "2023-06-01"})).json()["data"]
    limits = {model["id"]: (model["max_input_tokens"], model["max_tokens"]) for model in listed}
    assert limits["big"] == (None, None)
    assert None not in limits["nano"]
    models = (await served.get("/v1/models")).json()["models"]
    assert {model["slug"] for model in models if "context_window" not in model} == {"edit", "big", "gpt-4o"}


async def test_a_model_that_does_not_load_in_time_is_a_503(served: Served, engines: dict[str, LoadedOnDemand]) -> None:
    engines["big"].refusal = EngineUnavailable("big is loading; retry shortly", retry_after_s=7)
    response = await served.post(CHAT, chat(model="big"))
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert (await served.post(CHAT, chat(model="nano"))).status_code == 200
    assert (await served.get("/ready")).status_code == 200


async def test_usage_is_charged_to_the_model_that_answered(served: Served, bank: Bank) -> None:
    add_models(served, {"nano": "edit"}, {"gpt-4o": "big"})
    bearer = await bank.key()
    for path, body in ((CHAT, chat(model="gpt-4o")), ("/v1/edit/completions", {**REGION, "model": "mercury-edit-2"})):
        assert (await served.post(path, body, bearer)).status_code == 200
    with bank.accounts._admin.store.read() as connection:
        rows = connection.execute(select(ledger.c.model, ledger.c.state, ledger.c.output_tokens)).all()
    assert sorted((row.model, row.state, row.output_tokens) for row in rows) == [
        ("big", "settled", len("I am big")),
        ("edit", "settled", len("I am edit")),
    ]


async def test_metrics_have_the_model_as_a_label(served: Served, engines: dict[str, LoadedOnDemand]) -> None:
    await content(served, model="gpt-4o")
    text = await scrape(served)
    assert 'quicksilver_request_success_total{finished_reason="stop",model="big"} 1.0' in text
    assert 'quicksilver_model_loaded{model="big"} 1.0' in text
    assert 'quicksilver_model_loaded{model="edit"} 0.0' in text
    assert 'quicksilver_engine_up{model="nano"} 1.0' in text
    assert 'quicksilver_engine_up{model="edit"}' not in text
    assert "gpt-4o" not in text


def test_an_explicit_name_replaces_an_alias() -> None:
    table = name_table(("a", "b"), ServerConfig(), served_names={"mercury-2": "b"})
    assert table.model_of("mercury-2", RouteKind.CHAT) == "b"
    assert table.model_of("mercury", RouteKind.CHAT) == "a"
    assert table.names[0] == "a"


def test_served_names_are_checked() -> None:
    assert parse_served_names(["gpt-4o=a", "x=/models/b.gguf"]) == {"gpt-4o": "a", "x": "/models/b.gguf"}
    for entries in (["gpt-4o"], ["=a"], ["x="], ["x=a", "x=b"]):
        with pytest.raises(InvalidRequest, match="served-name"):
            parse_served_names(entries)
    with pytest.raises(InvalidRequest, match="c is not served"):
        name_table(("a",), ServerConfig(home=Path()), served_names={"x": "c"})


TABLE = NameTable({"nano": "nano", "mercury-2": "nano"}, {"coder": "coder", "mercury-edit": "coder"})


@pytest.mark.parametrize("name", ["nano", "mercury-2", "inception/mercury-2", "openai/nano", ""])
def test_ids_aliases_and_prefixes_select_a_model(name: str) -> None:
    assert TABLE.find(name, RouteKind.CHAT) == "nano"


def test_code_routes_have_their_own_names() -> None:
    assert TABLE.find("mercury-edit", RouteKind.CODE) == "coder"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ModelNotFound) as refused:
        TABLE.find("mercury-3", RouteKind.CHAT)
    assert "did you mean `mercury-2`?" in refused.value.message
    assert "`nano`, `coder`" in refused.value.message
    with pytest.raises(ModelNotFound) as refused:
        TABLE.find("z" * 5000, RouteKind.CHAT)
    assert len(refused.value.message) < 500
