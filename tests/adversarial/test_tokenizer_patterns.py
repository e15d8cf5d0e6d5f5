"""Tokenizers with patterns that backtrack without end: the text is refused, and the server goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quicksilver.errors import InvalidRequest, Unavailable
from quicksilver.server.encoding.pool import EncoderConfig, EncoderPool
from quicksilver.server.encoding.prompt_encoder import EncodeTexts, PromptEncoder
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary
from tests.support.fakes import tokenizer_json

BOMB = "(a+)+$"
TEXT = "a" * 40 + "b"


def tokenizer(pattern: str) -> Tokenizer:
    full: dict[str, Any] = tokenizer_json()
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    full["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, full["pre_tokenizer"]]}
    return Tokenizer(Vocabulary(json.dumps(full), vocab_size=273, eos_ids=(2, 0)))


def test_a_pattern_that_gives_up_is_a_refusal() -> None:
    bomb = tokenizer(BOMB)
    with pytest.raises(InvalidRequest, match="patterns"):
        bomb.encode(TEXT)
    assert bomb.encode("b") == tokenizer("x").encode("b")


async def test_the_pool_answers_after_a_text_that_takes_too_long() -> None:
    bomb = tokenizer(BOMB)
    pool = EncoderPool(bomb, ChatTemplate.own(bomb), EncoderConfig(num_processes=1, limit_s=1.0))
    await pool.start()
    try:
        with pytest.raises((InvalidRequest, Unavailable)):
            await pool.encode(EncodeTexts((*[("a" * 22 + "b") * 50] * 20,)), "tenant")
        encoded = await pool.encode(EncodeTexts(("b",)), "tenant")
        assert encoded.ids == (tuple(bomb.encode("b")),)
    finally:
        await pool.stop()


async def test_texts_for_a_foreign_template_are_encoded_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tokenizer("x")
    template = ChatTemplate.own(plain)
    monkeypatch.setattr(template, "source", "{{ messages }}")
    seen = []

    class Recorder:
        async def encode(self, job: EncodeTexts, tenant: str) -> Any:
            seen.append(job)
            raise InvalidRequest("seen")

    with pytest.raises(InvalidRequest, match="seen"):
        await PromptEncoder(plain, template, 512, Recorder()).encode(["short"], "t", "prompt")  # type: ignore[arg-type]
    assert seen == [EncodeTexts(("short",))]
