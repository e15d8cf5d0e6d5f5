"""Every client of the contract tests has a page with the lines to set: address, key and model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[2] / "docs" / "guides" / "clients"
LISTED = re.findall(r"\]\(([\w-]+)\.md\)", (CLIENTS / "index.md").read_text())
# Where the settings have no key, or no model: the key is optional there, or the model is chosen in the program.
WITHOUT_KEY = {"codex", "harnesses", "llama-cpp-plugins", "ollama", "zed"}
WITHOUT_MODEL = {"llama-cpp-plugins", "open-webui"}


def code_of(page: str) -> str:
    return "\n".join(re.findall(r"```\w+\n(.*?)```", (CLIENTS / f"{page}.md").read_text(), re.DOTALL))


def test_every_page_is_listed() -> None:
    assert sorted([*LISTED, "index"]) == sorted(path.stem for path in CLIENTS.glob("*.md"))


@pytest.mark.parametrize("page", LISTED)
def test_a_page_has_the_lines_to_set(page: str) -> None:
    code = code_of(page)
    assert "http://127.0.0.1:8480" in code or 'os.environ["URL"]' in code
    assert (re.search(r"(?i)(key|token)\W{1,6}none", code) is not None) is (page not in WITHOUT_KEY)
    assert (re.search(r"nano|coder-1\.5b|mercury-(2|coder)", code) is not None) is (page not in WITHOUT_MODEL)
