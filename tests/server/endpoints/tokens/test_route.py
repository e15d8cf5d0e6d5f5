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


async def test_routes_where_vllm_has_them(served: Served) -> None:
    body = {"prompt": "Hi there", "add_special_tokens": False, "return_token_strs": True}
    reply = (await served.post("/tokenize", body)).json()
    assert reply == (await served.post("/v1/tokenize", body)).json()
    assert "".join(reply["token_strs"]) == "Hi there"
    assert (await served.post("/detokenize", {"tokens": reply["tokens"]})).json() == {"prompt": "Hi there"}
    info = (await served.get("/tokenizer_info")).json()
    assert info == (await served.get("/v1/tokenizer_info")).json()
    tokenizer = small_tokenizer()
    assert tokenizer.special_tokens[info["eos_token"]] == tokenizer.eos_ids[0]
    assert info["model_max_length"] == 4096


async def test_the_name_of_a_special_token_is_its_id_for_clients_of_vllm_alone(served: Served) -> None:
    name, token_id = next(iter(small_tokenizer().special_tokens.items()))
    body = {"prompt": name, "add_special_tokens": False}
    assert (await served.post("/tokenize", body)).json()["tokens"] == [token_id]
    assert token_id not in (await served.post("/tokenize", {**body, "prompt": f"{name} "})).json()["tokens"]
    assert token_id not in (await served.post("/tokenize", {"prompt": name})).json()["tokens"]


@pytest.mark.parametrize("effort", [None, "none", "minimal", "instant", "low", "xhigh"])
async def test_efforts_are_those_of_a_chat(served: Served, effort: str | None) -> None:
    served.configure(reasoning_effort="low")
    body = chat("Hi", reasoning_effort=effort)
    usage = (await served.post("/v1/chat/completions", body)).json()["usage"]
    assert (await served.post("/v1/tokenize", body)).json()["count"] == usage["prompt_tokens"]
