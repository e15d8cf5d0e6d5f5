"""Encoding and decoding of text."""

from __future__ import annotations

import pytest

from tests.server.conftest import HELLO, Served, chat
from tests.support.small_tokenizer import small_tokenizer


async def test_text_survives_tokenize_and_detokenize(served: Served) -> None:
    for text in (HELLO, "<|im_start|>user\n", "\x00\x1f", "a" * 1000):
        ids = (await served.post("/v1/tokenize", {"model": "nano", "prompt": text})).json()["tokens"]
        assert (await served.post("/v1/detokenize", {"model": "nano", "tokens": ids})).json() == {"prompt": text}


async def test_tokenize_counts_what_a_chat_would_cost(served: Served) -> None:
    body = chat("Hi")
    usage = (await served.post("/v1/chat/completions", body)).json()["usage"]
    reply = (await served.post("/v1/tokenize", body)).json()
    assert (reply["count"], reply["max_model_len"]) == (usage["prompt_tokens"], 4096)
    special = set(small_tokenizer().special_tokens.values())
    assert special & set(reply["tokens"])


@pytest.mark.parametrize("fields", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}])
async def test_tokenize_takes_either_prompt_or_messages(served: Served, fields: dict[str, object]) -> None:
    assert (await served.post("/v1/tokenize", {"model": "nano", **fields})).status_code == 400
