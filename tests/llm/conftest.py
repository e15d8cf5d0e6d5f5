"""LLM and AsyncLLM over a tiny random model with one token per byte."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.engine.config import EngineConfig
from quicksilver.llm.jobs import JobBuilder
from quicksilver.llm.llm import LLM
from quicksilver.text.chat import ChatTemplate
from tests.support.small_tokenizer import VOCAB_SIZE, small_tokenizer
from tests.support.tiny import tiny_engine, tiny_model


def tiny_parts(model: str, load: Any, config: Any, system_prompt: str | None, adapters: Any = ()) -> Any:
    tokenizer = small_tokenizer()
    engine = tiny_engine(config or EngineConfig(num_pages=256, max_rows=96), tiny_model(vocab_size=VOCAB_SIZE))
    return engine, JobBuilder(tokenizer, ChatTemplate.own(tokenizer, system_prompt))


@pytest.fixture
def tiny_llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setattr("quicksilver.llm.llm.load_parts", tiny_parts)
    return LLM("tiny", system_prompt="")
