"""The array `models` of `/v1/models`, which Codex reads."""

from __future__ import annotations

from dataclasses import replace

from quicksilver.server.endpoints.models.codex import INSTRUCTIONS, codex_model
from quicksilver.server.endpoints.models.listing import entry
from quicksilver.text.chat import ChatTemplate
from tests.server.conftest import Served

# Fields without a default in Codex's own record of a model.
REQUIRED = {
    "slug",
    "display_name",
    "supported_reasoning_levels",
    "shell_type",
    "visibility",
    "supported_in_api",
    "priority",
    "base_instructions",
    "supports_reasoning_summaries",
    "support_verbosity",
    "truncation_policy",
    "supports_parallel_tool_calls",
    "experimental_supported_tools",
}


async def test_every_chat_name_is_listed_beside_the_entries_of_openai(served: Served) -> None:
    listed = (await served.get("/v1/models?client_version=0.166.0")).json()
    assert listed["object"] == "list"
    assert [model["slug"] for model in listed["models"]] == list(served.services.model_names.chat)
    assert [model["priority"] for model in listed["models"]] == list(range(len(listed["models"])))
    for model in listed["models"]:
        assert set(model) >= REQUIRED
        assert (model["context_window"], model["base_instructions"]) == (4096, INSTRUCTIONS)
        assert model["truncation_policy"] == {"mode": "tokens", "limit": 1024}
    assert "models" not in (await served.get("/v1/chat/completions/models")).json()


async def test_reasoning_levels_are_listed_only_for_a_template_that_has_them(served: Served) -> None:
    async def levels() -> list[str]:
        model = (await served.get("/v1/models")).json()["models"][0]
        assert model["supports_reasoning_summaries"] is bool(model["supported_reasoning_levels"])
        return [level["effort"] for level in model["supported_reasoning_levels"]]

    assert await levels() == ["low", "medium", "high"]
    plain = ChatTemplate.from_source(served.services.tokenizer, "{{ messages[0].content }}{% if tools %}{% endif %}")
    served.app.state.services = replace(served.services, template=plain)
    assert await levels() == []


async def test_a_model_that_was_never_loaded_has_no_context_window(served: Served) -> None:
    listed = entry(served.services, "nano")
    del listed["context_length"]
    model = codex_model(listed, 0)
    assert "context_window" not in model
    assert model["truncation_policy"]["limit"] > 0
