"""PlainText: what the prompt already ended with is not said a second time, however tokens arrive."""

from __future__ import annotations

import pytest

from quicksilver.server.generation.plain_text import PlainText
from tests.support.fakes import ByteTokenizer


def read(text: str, lead: str, piece_len: int) -> str:
    tokenizer = ByteTokenizer()
    ids, source = tokenizer.encode(text), PlainText(tokenizer, (), lead)
    deltas = [d for at in range(0, len(ids), piece_len) for d in source.push(ids[at : at + piece_len])]
    return "".join(delta.text for delta in [*deltas, *source.finish()])


@pytest.mark.parametrize("piece_len", [1, 2, 99])
def test_lead_is_left_out_once(piece_len: int) -> None:
    assert read("  x = 1", " ", piece_len) == " x = 1"
    assert read("x = 1", " ", piece_len) == "x = 1"
    assert read(" x", "", piece_len) == " x"
