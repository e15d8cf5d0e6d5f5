"""Loads the parts that LLM and AsyncLLM share: the engine, and the builder of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import LoadConfig, load_engine
from quicksilver.hub.resolve import resolve
from quicksilver.llm.jobs import JobBuilder
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer

# Requests of a batch that wait in the engine, so that it always has a next one.
NUM_QUEUED = 64


def max_open(config: EngineConfig) -> int:
    """How many requests of a batch are in the engine at the same time, running or queued."""
    return max(1, min(config.max_running + NUM_QUEUED, config.max_waiting))


def load_parts(
    model: str,
    load: LoadConfig | None,
    config: EngineConfig | None,
    system_prompt: str | None,
    adapters: Sequence[Path | str] = (),
) -> tuple[Engine, JobBuilder]:
    checkpoint = resolve(model).with_adapters(map(Path, adapters))
    tokenizer = Tokenizer.for_model(checkpoint.weights, checkpoint.skill)
    engine = load_engine(checkpoint, load or LoadConfig(), config or EngineConfig())
    return engine, JobBuilder(tokenizer, ChatTemplate.for_tokenizer(tokenizer, system_prompt))


def allow_constraints(engine: Engine, tokenizer: Tokenizer) -> None:
    """Give the engine the factory of token constraints, before the first request that has one."""
    if engine.constraints is None:
        from quicksilver.constrain.runtime.matcher import Grammars

        engine.constraints = Grammars(tokenizer.to_json(), tokenizer.eos_ids, engine.info.vocab_size).constraint
