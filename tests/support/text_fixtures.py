"""Fixtures for text and editing tests: a tiny tokenizer built in memory, and the tokenizer of nano if it was pulled."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quicksilver.text.tokenizer import Tokenizer
from tests.support.fakes import ByteTokenizer, tiny_tokenizer

_HOME = Path(os.environ.get("QUICKSILVER_HOME") or Path.home() / ".cache" / "quicksilver")
_SMOLLM2 = _HOME / "models" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
_QWEN = _HOME / "models" / "qwen2.5-coder-1.5b-instruct" / "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"
_SHARED = Path(os.environ.get("QUICKSILVER_SHARED") or Path(__file__).parents[3] / "shared")


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def born() -> Tokenizer:
    """A tokenizer of a checkpoint that has FIM tokens but no edit tokens."""
    return ByteTokenizer().with_roles({"fim_prefix": 11, "fim_suffix": 12, "fim_middle": 13})


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    if not _SMOLLM2.is_file():
        pytest.skip(f"no {_SMOLLM2.name}: run `quicksilver pull nano` first")
    return Tokenizer.from_gguf(_SMOLLM2)


@pytest.fixture(scope="session")
def qwen() -> Tokenizer:
    if not _QWEN.is_file():
        pytest.skip(f"no {_QWEN.name}: run `quicksilver pull coder-1.5b` first")
    return Tokenizer.from_gguf(_QWEN)


@pytest.fixture(scope="session", params=["tiny", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Every available tokenizer, with the reserved tokens in their roles."""
    found: Tokenizer = request.getfixturevalue(request.param)
    return found.with_reserved()


@pytest.fixture(scope="session")
def shared() -> Path:
    if not _SHARED.is_dir():
        pytest.skip("no folder of outside data: set QUICKSILVER_SHARED")
    return _SHARED


@pytest.fixture(scope="session")
def naughty_strings(shared: Path) -> list[str]:
    strings: list[str] = json.loads((shared / "data/json/naughty-strings.json").read_text(encoding="utf-8"))
    return strings
