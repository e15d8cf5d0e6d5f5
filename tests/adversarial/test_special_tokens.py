"""Special tokens spelled out in edit and apply prompts and in stop strings: they stay text."""

from __future__ import annotations

import pytest

from quicksilver.core import Delta, FinishReason
from tests.server.conftest import Served, chat, events, says
from tests.support.small_tokenizer import small_tokenizer

CHAT, EDIT, APPLY, FIM = "/v1/chat/completions", "/v1/edit/completions", "/v1/apply/completions", "/v1/fim/completions"
SPECIAL = sorted(small_tokenizer().special_tokens)


def special_ids(served: Served) -> list[int]:
    """The special ids of all prompts that the engine saw since the last call."""
    special = set(small_tokenizer().special_tokens.values())
    found = [token_id for request in served.engine.seen for token_id in request.prompt_ids if token_id in special]
    served.engine.seen.clear()
    return found


def edit_body(text: str) -> dict[str, object]:
    prompt = (
        f"<|current_file_content|>\ncurrent_file_path: {text}.py\n# {text}\n<|code_to_edit|>\nx = '{text}'\n"
        f"<|/code_to_edit|>\n<|/current_file_content|>\n<|edit_diff_history|>\n+ {text}\n<|/edit_diff_history|>"
    )
    return {"model": "nano", "messages": [{"role": "user", "content": prompt}]}


def apply_body(text: str) -> dict[str, object]:
    prompt = (
        f"<|original_code|>\ndef a():\n    return '{text}'\n<|/original_code|>\n"
        f"<|update_snippet|>\ndef a():\n    return '{text}!'\n<|/update_snippet|>"
    )
    return {"model": "nano", "messages": [{"role": "user", "content": prompt}]}


@pytest.mark.parametrize("token", SPECIAL)
async def test_an_edit_prompt_encodes_them_as_text(served: Served, token: str) -> None:
    assert (await served.post(EDIT, edit_body("plain"))).status_code == 200
    expected = special_ids(served)
    assert (await served.post(EDIT, edit_body(token))).status_code in (200, 400)
    assert special_ids(served) in (expected, [])


@pytest.mark.parametrize("token", SPECIAL)
async def test_an_apply_prompt_encodes_them_as_text(served: Served, token: str) -> None:
    assert (await served.post(APPLY, apply_body("plain"))).status_code == 200
    expected = special_ids(served)
    assert (await served.post(APPLY, apply_body(token))).status_code == 200
    assert special_ids(served) in (expected, [])


@pytest.mark.parametrize("token", SPECIAL)
async def test_a_stop_string_is_matched_as_text_and_adds_no_stop_token(served: Served, token: str) -> None:
    # The model writes the letters of the token, not the token.
    ids = tuple(small_tokenizer().encode(f"before {token} after"))
    served.engine.script = lambda r: [Delta(r.id, ids, finish=FinishReason.STOP)]
    reply = (await served.post(CHAT, chat(stop=[token]))).json()
    assert reply["choices"][0]["message"]["content"] == "before "
    streamed = events(await served.post(CHAT, chat(stop=[token], stream=True)))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in streamed) == "before "
    await served.post(CHAT, chat())
    *with_stop, plain = served.engine.seen
    assert {request.params.stop_ids for request in with_stop} == {plain.params.stop_ids}


async def test_a_stop_string_does_not_match_a_special_token(served: Served) -> None:
    """A special token has no text, so the answer continues after it."""
    served.engine.script = says("one<|fim_middle|>two" if "<|fim_middle|>" in SPECIAL else "one two")
    reply = await served.post(FIM, {"model": "nano", "prompt": "x", "stop": ["<|fim_middle|>"]})
    assert reply.status_code == 200
    assert "two" in reply.json()["choices"][0]["text"]
