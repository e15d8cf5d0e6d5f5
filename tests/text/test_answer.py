"""Reading an answer: however its tokens are cut into deltas, it reads the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.core import Delta, FinishReason, Frame, Request, Usage
from quicksilver.errors import InvalidGrammar, OutputInvalid, QuicksilverError, RowFailed
from quicksilver.text.answer import (
    AnswerReader,
    CollectedAnswer,
    Finished,
    FrameSnapshot,
    PlainText,
    ReadOptions,
    TextDelta,
)
from tests.support.fakes import ByteTokenizer
from tests.support.small_tokenizer import small_tokenizer

TEXTS = st.text(max_size=40) | st.sampled_from(
    [
        "thought</think>answer",
        'before<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        "one STOP two",
        "ünï 你好 👋🏽",
    ]
)


REQUEST = Request("x", (1, 2, 3), wants_frames=True)


def read(ids: list[int], cuts: list[int], options: ReadOptions) -> CollectedAnswer:
    """The answer read from deltas that are cut at `cuts`, with a frame before each."""
    reader, answer = AnswerReader(REQUEST, options, small_tokenizer()), CollectedAnswer()
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    spans = list(pairwise(edges)) or [(0, 0)]
    for start, end in spans:
        is_last = end == len(ids)
        piece = tuple(ids[start:end])
        frame = Frame("x", start, piece, (True,) * len(piece), (0.5,) * len(piece))
        delta = Delta("x", piece, finish=FinishReason.STOP if is_last else None, usage=Usage(3) if is_last else None)
        for event in (frame, delta):
            for read_piece in reader.read(event):
                answer.add(read_piece)
        if reader.is_finished:
            break
    return answer


def make_options(**fields: object) -> ReadOptions:
    return ReadOptions(stop=("STOP",), tool_names=frozenset({"f"}), **fields)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=12), is_plain=st.booleans(), thinks=st.booleans())
def test_cuts_do_not_change_the_answer(text: str, cuts: list[int], is_plain: bool, thinks: bool) -> None:
    ids = small_tokenizer().encode_markup(text)
    options = make_options(is_plain=is_plain, opens_thinking=thinks and not is_plain)
    assert read(ids, cuts, options) == read(ids, [], options)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_decided_canvas_previews_what_is_then_committed(text: str, cuts: list[int]) -> None:
    ids = small_tokenizer().encode(text)
    reader = AnswerReader(REQUEST, ReadOptions(is_plain=True), small_tokenizer())
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    content = ""
    for start, end in pairwise(edges):
        rest = tuple(ids[start:])
        (snapshot,) = reader.read(Frame("x", 0, rest, (True,) * len(rest), (1.0,) * len(rest)))
        assert isinstance(snapshot, FrameSnapshot)
        assert snapshot.text == text
        for piece in reader.read(Delta("x", tuple(ids[start:end]))):
            assert isinstance(piece, TextDelta)
            content += "".join(delta.text for delta in piece.deltas)
        assert text.startswith(content)


def test_an_answer_that_a_stop_string_ends_reports_its_usage() -> None:
    ids = small_tokenizer().encode("one STOP two")
    reader = AnswerReader(REQUEST, make_options(is_plain=True), small_tokenizer())
    *_, finished = reader.read(Delta("x", tuple(ids), usage=Usage(3, 0, len(ids), forwards=5, rounds=2)))
    assert isinstance(finished, Finished)
    assert (finished.usage.forwards, finished.usage.rounds) == (5, 2)
    assert 0 < finished.usage.completion_tokens < len(ids)


def test_tokens_after_a_stop_string_are_not_counted() -> None:
    ids = small_tokenizer().encode("one STOP two")
    answer = read(ids, [], make_options())
    assert answer.content == "one "
    assert answer.finished.usage.completion_tokens == len("one STOP")
    assert answer.finished == Finished(FinishReason.STOP, Usage(3, 0, 8), 0, 0, stop="STOP")


def test_an_invalid_output_is_refused_without_its_text() -> None:
    options = ReadOptions(find_fault=lambda content, calls: "x" * 1000)
    with pytest.raises(OutputInvalid) as caught:
        read(small_tokenizer().encode("secret"), [], options)
    assert len(caught.value.message) < 300


def test_a_stopped_or_cut_answer_is_not_validated() -> None:
    options = ReadOptions(stop=("STOP",), find_fault=lambda content, calls: "invalid")
    assert read(small_tokenizer().encode("a STOP"), [], options).content == "a "


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ("row_failed: non-finite numbers", RowFailed, 500),
        ("invalid_json_schema: too deep", InvalidGrammar, 400),
        (None, RowFailed, 500),
    ],
)
def test_an_error_event_becomes_the_error_of_its_code(
    error: str | None, kind: type[QuicksilverError], status: int
) -> None:
    reader = AnswerReader(REQUEST, ReadOptions(), small_tokenizer())
    with pytest.raises(kind) as caught:
        reader.read(Delta("x", finish=FinishReason.ERROR, error=error))
    assert caught.value.status == status


@pytest.mark.parametrize("piece_len", [1, 2, 99])
@pytest.mark.parametrize(
    ("text", "lead", "answer"), [("  x = 1", " ", " x = 1"), ("x = 1", " ", "x = 1"), (" x", "", " x")]
)
def test_plain_text_leaves_the_lead_out_once(text: str, lead: str, answer: str, piece_len: int) -> None:
    tokenizer = ByteTokenizer()
    ids, source = tokenizer.encode(text), PlainText(tokenizer, (), lead)
    deltas = [d for at in range(0, len(ids), piece_len) for d in source.push(ids[at : at + piece_len])]
    assert "".join(delta.text for delta in [*deltas, *source.finish()]) == answer
