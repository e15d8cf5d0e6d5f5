"""Which text each token adds: characters spread over tokens, and text that the channels leave out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.core import Delta, Frame
from quicksilver.text.canvas_text import CanvasText
from quicksilver.text.channels import Channel
from tests.support.small_tokenizer import small_tokenizer


def texts_of(canvas: CanvasText, ids: tuple[int, ...], content: str) -> list[str]:
    return [token.text for token in canvas.commit(Delta("x", ids), [Channel.CONTENT] * len(ids), content)]


@settings(max_examples=80, deadline=None)
@given(text=st.text(min_size=1, max_size=20), cuts=st.lists(st.integers(0, 80), max_size=6))
def test_committed_and_shown_texts_join_to_the_snapshot(text: str, cuts: list[int]) -> None:
    ids = tuple(small_tokenizer().encode(text))
    canvas, sent, committed = CanvasText(small_tokenizer()), b"", ""
    for start, end in pairwise(sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})):
        frame = Frame("x", 0, ids[start:], (True,) * (len(ids) - start), (1.0,) * (len(ids) - start))
        assert committed + "".join(canvas.position_texts(frame)) == text
        fresh = b"".join(map(small_tokenizer().token_bytes, ids[start:end]))
        before = sent.decode("utf-8", "ignore")
        sent += fresh
        committed += "".join(texts_of(canvas, ids[start:end], sent.decode("utf-8", "ignore")[len(before) :]))


def test_line_breaks_that_only_set_channels_apart_are_no_token_text() -> None:
    canvas = CanvasText(small_tokenizer())
    newline, *rest = small_tokenizer().encode("\nab")
    assert texts_of(canvas, (newline,), "") == []
    assert texts_of(canvas, tuple(rest), "ab") == ["", "a", "b"]


def test_tokens_of_other_channels_are_left_out() -> None:
    ids = tuple(small_tokenizer().encode("abc"))
    channels = [Channel.REASONING, Channel.CONTENT, Channel.CONTENT]
    committed = CanvasText(small_tokenizer()).commit(Delta("x", ids, num_forced=1), channels, "bc")
    assert [(token.text, token.is_forced) for token in committed] == [("b", False), ("c", True)]


def test_positions_after_a_special_token_are_not_shown() -> None:
    ids = tuple(small_tokenizer().encode_markup("a<|im_end|>b"))
    frame = Frame("x", 0, ids, (True,) * len(ids), (1.0,) * len(ids))
    assert CanvasText(small_tokenizer()).position_texts(frame) == ("a",)
