"""The page for editors: its configurations parse, and the requests that it shows are answered by the server."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT, blocks
from tests.server.conftest import HELLO, Served, events

PAGE = ROOT / "docs/guides/editors.md"
REQUESTS = blocks("http", PAGE)
MODEL = "coder-1.5b-edit"


def parse(block: str) -> tuple[str, str, dict[str, Any]]:
    head, _, body = block.partition("\n")
    method, path = head.split()
    return method, path, json.loads(body) if body.strip() else {}


def test_every_client_of_the_table_has_a_section_with_a_request() -> None:
    text = PAGE.read_text()
    sections = {part.split("\n")[0]: part for part in text.split("\n## ")[1:]}
    assert set(sections) >= {"Continue", "Zed", "Neovim", "llama.vscode", "Cline", "aider", "Open WebUI"}
    assert all("```http" in section for section in sections.values())


@pytest.mark.parametrize("block", REQUESTS)
async def test_the_server_answers_every_request_of_the_page(served: Served, block: str) -> None:
    served.configure(card=replace(served.services.config.card, id=MODEL))
    method, path, body = parse(block)
    if method == "GET":
        assert MODEL in {entry["id"] for entry in (await served.get(path)).json()["data"]}
        return
    response = await served.post(path, body)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        chunks = [choice for chunk in events(response) for choice in chunk["choices"]]
        texts = [choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in chunks]
        answer = "".join(texts)
    else:
        answer = response.json()["choices"][0]["text"]
    assert "return 2" in answer if "apply" in path else HELLO in answer


def test_prompts_with_fim_tags_reach_the_model_as_prefix_and_suffix() -> None:
    tagged = [parse(block)[2]["prompt"] for block in REQUESTS if "fim_prefix" in block]
    assert len(tagged) == 2
    pattern = r"<\|fim_prefix\|>.*<\|fim_suffix\|>.*<\|fim_middle\|>"
    assert all(re.fullmatch(pattern, prompt, re.DOTALL) for prompt in tagged)


def test_configurations_parse_and_point_to_routes_of_the_requests() -> None:
    for block in blocks("json", PAGE):
        json.loads(block)
    (continue_config,) = blocks("yaml", PAGE)
    (model,) = yaml.safe_load(continue_config)["models"]
    assert model["apiBase"].endswith("/v1/")
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", PAGE.read_text())) == {"8480"}
    assert PAGE.read_text().count("8480/v1/completions") == 2
