"""Names of models: ids, aliases, prefixes of routers, and hints for unknown ones."""

from __future__ import annotations

import pytest

from quicksilver.errors import ModelNotFound
from quicksilver.server.config import ModelCard
from quicksilver.server.endpoints.models.names import Directory, ListedModel
from quicksilver.server.models import NameTable, RouteKind
from tests.server.conftest import says
from tests.support.fake_engine import FakeEngine

TABLE = NameTable({"nano": "nano", "mercury-2": "nano"}, {"coder": "coder", "mercury-edit": "coder"})


def directory(**nano: object) -> Directory:
    engine = FakeEngine(says(""))
    models = {
        "nano": ListedModel(ModelCard(id="nano", name="Nano"), engine, **nano),  # type: ignore[arg-type]
        "coder": ListedModel(ModelCard(id="coder", name="Coder"), engine),
    }
    return Directory(TABLE, models)


@pytest.mark.parametrize("name", ["nano", "mercury-2", "inception/mercury-2", "openai/nano", ""])
def test_ids_aliases_and_prefixes_select_a_model(name: str) -> None:
    assert directory().find(name, RouteKind.CHAT) == "nano"


def test_code_routes_have_their_own_names() -> None:
    assert directory().find("mercury-edit", RouteKind.CODE) == "coder"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ModelNotFound) as refused:
        directory().check("mercury-3")
    assert "did you mean `mercury-2`?" in refused.value.message
    assert "`nano`, `coder`" in refused.value.message
    with pytest.raises(ModelNotFound) as refused:
        directory().check("z" * 5000)
    assert len(refused.value.message) < 500


def test_an_entry_has_the_name_of_the_request_and_the_id_of_the_model() -> None:
    entry = directory().entry("mercury-2")
    assert (entry["id"], entry["quicksilver"]["model"]) == ("mercury-2", "nano")
    assert entry["context_length"] == 4096


def test_reasoning_is_listed_for_models_whose_prompts_have_it() -> None:
    assert "reasoning" in directory().entry("nano")["supported_features"]
    assert "reasoning" not in directory(can_think=False).entry("nano")["supported_features"]


def test_an_adapter_names_its_base() -> None:
    assert directory(parent="base").entry("nano")["parent"] == "base"
    assert "parent" not in directory().entry("nano")


def test_lists_have_an_entry_for_each_name() -> None:
    listing = directory().listing(["nano", "mercury-2"])
    assert [entry["id"] for entry in listing["data"]] == ["nano", "mercury-2"]
