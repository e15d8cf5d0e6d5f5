"""coder-1.5b as shipped: in float32, drafting changes only the number of forwards. Needs 7 GB of memory."""

from __future__ import annotations

import pytest

from quicksilver.engine.load import LoadConfig
from quicksilver.llm import LLM
from quicksilver.text.chat import Message
from tests.support.tiny import decode_params
from tests.support.weights import coder

pytestmark = [pytest.mark.parity, pytest.mark.timeout(600)]

QUESTION = "Write a Python function that adds two numbers."


def test_drafts_change_nothing_but_the_number_of_forwards() -> None:
    coder()
    llm = LLM("coder-1.5b", LoadConfig(device="cpu", weights="float32"))
    slow, fast = (
        llm.chat([Message("user", QUESTION)], decode_params(decoder, canvas_len=16, max_new_tokens=12))
        for decoder in ("ar", "verify")
    )
    assert fast.token_ids == slow.token_ids
    assert fast.usage.forwards < slow.usage.forwards / 1.5
