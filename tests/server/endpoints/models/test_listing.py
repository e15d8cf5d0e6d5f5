"""What the model lists say of each model."""

from __future__ import annotations

from dataclasses import replace

from quicksilver.server.endpoints.models.listing import describe, entry, listing
from quicksilver.text.chat import ChatTemplate
from tests.server.conftest import Served


def test_an_entry_has_the_name_of_the_request_and_the_id_of_the_model(served: Served) -> None:
    listed = entry(served.services, "mercury-2")
    assert (listed["id"], listed["quicksilver"]["model"]) == ("mercury-2", "nano")
    assert listed["context_length"] == 4096


def test_reasoning_is_listed_for_models_whose_prompts_have_it(served: Served) -> None:
    services = served.services
    assert "reasoning" in entry(services, "nano")["supported_features"]
    silent = replace(services, template=ChatTemplate.from_source(services.tokenizer, "{{ messages }}"))
    assert "reasoning" not in describe("nano", silent)["supported_features"]


def test_an_adapter_names_its_base(served: Served) -> None:
    assert describe("nano", replace(served.services, base_id="base"))["parent"] == "base"
    assert "parent" not in entry(served.services, "nano")


def test_lists_have_an_entry_for_each_name(served: Served) -> None:
    listed = listing(served.services, ["nano", "mercury-2"])
    assert [each["id"] for each in listed["data"]] == ["nano", "mercury-2"]


VERSION = {"anthropic-version": "2023-06-01"}


async def test_the_header_selects_the_form_of_the_list(served: Served) -> None:
    plain = (await served.get("/v1/models")).json()
    listed = (await served.get("/v1/models", VERSION)).json()
    assert [model["id"] for model in listed["data"]] == [model["id"] for model in plain["data"]]
    assert (listed["first_id"], listed["has_more"]) == (plain["data"][0]["id"], False)
    assert {model["type"] for model in listed["data"]} == {"model"}
    one = (await served.get("/v1/models/nano", VERSION)).json()
    assert one in listed["data"]
    assert one["created_at"].endswith("Z")
    assert (await served.get("/v1/models/none", VERSION)).status_code == 404
