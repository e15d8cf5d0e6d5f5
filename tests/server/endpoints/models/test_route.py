"""Model lists and names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.text.chat import ChatTemplate
from tests.server.conftest import Served, chat


async def test_model_lists_name_capabilities(served: Served) -> None:
    async def names(path: str) -> list[str]:
        return [entry["id"] for entry in (await served.get(path)).json()["data"]]

    everything = await names("/v1/models")
    assert everything[0] == "nano"
    assert {"mercury-2", "mercury-2.5", "mercury", "mercury-edit-2", "mercury-coder"} <= set(everything)
    assert "mercury-edit-2" not in await names("/v1/chat/completions/models")
    for path in ("/v1/fim/completions/models", "/v1/edit/completions/models", "/v1/apply/completions/models"):
        assert "mercury-edit-2" in await names(path)
        assert "mercury-2" not in await names(path)


async def test_a_model_entry_has_context_and_price(served: Served) -> None:
    entry = (await served.get("/v1/models/mercury-2")).json()
    assert (entry["id"], entry["object"], entry["context_length"]) == ("mercury-2", "model", 4096)
    assert set(entry["pricing"]) == {"prompt", "completion", "input_cache_reads", "input_cache_writes"}
    assert (await served.get("/v1/models/inception/mercury-2")).json()["id"] == "inception/mercury-2"


async def test_an_unknown_model_suggests_a_name(served: Served) -> None:
    response = await served.post("/v1/chat/completions", chat(model="mercury-22"))
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "mercury-2" in response.json()["error"]["message"]


async def test_an_unknown_model_names_those_that_exist(served: Served) -> None:
    message = (await served.post("/v1/chat/completions", chat(model="gpt-4"))).json()["error"]["message"]
    assert "this server has `nano` (also named " in message
    assert all(name in message for name in served.services.model_names.names)


async def test_reasoning_is_listed_only_for_a_template_that_has_it(served: Served) -> None:
    async def features() -> list[str]:
        return list((await served.get("/v1/models/nano")).json()["supported_features"])

    assert "reasoning" in await features()
    plain = ChatTemplate.from_source(served.services.tokenizer, "{{ messages[0].content }}{% if tools %}{% endif %}")
    served.app.state.services = replace(served.services, template=plain)
    assert await features() == ["tools", "json_mode", "structured_outputs", "logprobs"]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/fim/completions", "/v1/completions", "/v1/edit/completions"]
)
async def test_every_mercury_name_is_taken_and_echoed(served: Served, path: str) -> None:
    region = "<|code_to_edit|>\nx\n<|/code_to_edit|>"
    for model in served.services.model_names.names:
        body = {"model": model, "prompt": "x", "messages": [{"role": "user", "content": region}]}
        assert (await served.post(path, body)).json()["model"] == model


async def test_card_fields_are_the_operators(served: Served) -> None:
    card = replace(served.services.config.card, id="mine", country_code="NO", created=7)
    served.configure(card=card)
    entry = (await served.get("/v1/models/mine")).json()
    assert (entry["created"], entry["datacenters"]) == (7, [{"country_code": "NO"}])


async def test_a_slash_at_the_end_of_the_path_lists_the_models(served: Served) -> None:
    listed, slashed = await served.get("/v1/models"), await served.get("/v1/models/")
    assert listed.json() == slashed.json()
