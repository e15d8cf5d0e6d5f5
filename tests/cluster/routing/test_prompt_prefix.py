from __future__ import annotations

import json
from typing import Any

from quicksilver.cluster.routing.prompt_prefix import MAX_PARSED_BYTES, affinity_keys

LONG = "You are a careful assistant. " * 60


def keys(body: dict[str, Any], salt: bytes = b"key") -> list[bytes]:
    return affinity_keys(salt, json.dumps(body).encode())


def chat(*texts: str, system: str = LONG, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"model": "nano", "messages": [{"role": "system", "content": system}, *turns], **fields}


def test_chats_with_one_system_prompt_share_the_first_key_only() -> None:
    one, other = keys(chat("red")), keys(chat("blue"))
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_a_conversation_keeps_both_keys_as_it_grows() -> None:
    assert keys(chat("red")) == keys(chat("red", "a colour", "and blue?"))


def test_sampling_fields_and_the_order_of_fields_do_not_matter() -> None:
    body = chat("red")
    assert keys(body) == keys({**chat("red", temperature=0.2, seed=4), "stream": True})
    assert keys(body) == keys(dict(reversed(body.items())))


def test_tools_system_and_callers_matter() -> None:
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    assert keys(chat("red"))[0] != keys(chat("red", tools=tools))[0]
    assert keys(chat("red"))[0] != keys(chat("red", system="Be brief. " * 200))[0]
    assert not {*keys(chat("red"), b"one")} & {*keys(chat("red"), b"two")}


def test_every_dialect_has_a_prefix() -> None:
    message = [{"role": "user", "content": [{"type": "text", "text": LONG}]}]
    for body in (
        {"prompt": LONG},
        {"prompt": [LONG, LONG]},
        {"prompt": list(range(3000))},
        {"prompt": LONG, "suffix": "x"},
        {"system": LONG, "messages": [{"role": "user", "content": "x"}]},
        {"system": [{"type": "text", "text": LONG}], "messages": message},
        {"instructions": LONG, "input": "x"},
        {"input": message},
        {"input_prefix": LONG, "input_suffix": "x"},
    ):
        assert keys(body), body
        assert keys(body)[0] == keys({**body, "temperature": 0})[0]


def test_short_prompts_and_other_bodies_have_no_prefix() -> None:
    assert keys({"prompt": "x" * 63}) == []
    assert len(keys({"prompt": "x" * 64})) == 1
    for body in (b"", b"{", b"[1]", b'"text"', b"\xff", b"{}"):
        assert affinity_keys(b"", body) == []


def test_very_long_bodies_are_identified_by_their_leading_bytes() -> None:
    body = json.dumps({"prompt": LONG + "x" * MAX_PARSED_BYTES}).encode()
    assert affinity_keys(b"", body) == affinity_keys(b"", body + b" ")
    assert len(affinity_keys(b"", body)) == 1
