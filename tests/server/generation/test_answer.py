"""Reading an answer: however its tokens are cut into deltas, it reads the same."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.core import Delta, FinishReason, Frame, Request, Usage
from quicksilver.server.generation.answer import AnswerReader, Ask, Ended, Said, Shown
from quicksilver.server.generation.collect import Whole
from tests.support.small_tokenizer import small_tokenizer

TEXTS = st.text(max_size=40) | st.sampled_from(
    [
        "thought</think>answer",
        'before<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        "one STOP two",
        "ünï 你好 👋🏽",
    ]
)


def read(ids: list[int], cuts: list[int], ask: Ask) -> Whole:
    """The answer as the reader puts it together from deltas cut at `cuts`, with a frame before each."""
    reader, whole = AnswerReader(ask, small_tokenizer()), Whole()
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    spans = list(pairwise(edges)) or [(0, 0)]
    for start, end in spans:
        is_last = end == len(ids)
        piece = tuple(ids[start:end])
        frame = Frame("x", start, piece, (True,) * len(piece), (0.5,) * len(piece))
        delta = Delta("x", piece, finish=FinishReason.STOP if is_last else None, usage=Usage(3) if is_last else None)
        for event in (frame, delta):
            for told in reader.read(event):
                whole.add(told)
        if reader.is_ended:
            break
    return whole


def asking(**fields: object) -> Ask:
    request = Request("x", (1, 2, 3), wants_frames=True)
    return Ask(request, stop=("STOP",), tool_names=frozenset({"f"}), **fields)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=12), is_plain=st.booleans(), thinks=st.booleans())
def test_cuts_do_not_change_the_answer(text: str, cuts: list[int], is_plain: bool, thinks: bool) -> None:
    ids = small_tokenizer().encode_markup(text)
    ask = asking(is_plain=is_plain, opens_thinking=thinks and not is_plain)
    assert read(ids, cuts, ask) == read(ids, [], ask)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_decided_canvas_previews_what_is_then_committed(text: str, cuts: list[int]) -> None:
    ids = small_tokenizer().encode(text)
    reader = AnswerReader(Ask(Request("x", (1,), wants_frames=True), is_plain=True), small_tokenizer())
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    content = ""
    for start, end in pairwise(edges):
        rest = tuple(ids[start:])
        (shown,) = reader.read(Frame("x", 0, rest, (True,) * len(rest), (1.0,) * len(rest)))
        assert isinstance(shown, Shown)
        assert shown.text == text
        for told in reader.read(Delta("x", tuple(ids[start:end]))):
            assert isinstance(told, Said)
            content += "".join(delta.text for delta in told.deltas)
        assert text.startswith(content)


def test_an_answer_that_a_stop_string_ends_tells_what_it_cost_so_far() -> None:
    ids = small_tokenizer().encode("one STOP two")
    reader = AnswerReader(asking(is_plain=True), small_tokenizer())
    *_, ended = reader.read(Delta("x", tuple(ids), usage=Usage(3, 0, len(ids), forwards=5, rounds=2)))
    assert isinstance(ended, Ended)
    assert (ended.usage.forwards, ended.usage.rounds) == (5, 2)
    assert 0 < ended.usage.completion_tokens < len(ids)


def test_tokens_behind_a_stop_string_are_not_counted() -> None:
    ids = small_tokenizer().encode("one STOP two")
    whole = read(ids, [], asking())
    assert whole.content == "one "
    assert whole.ended.usage.completion_tokens == len("one STOP")
    assert whole.ended == Ended(FinishReason.STOP, Usage(3, 0, 8), 0, 0)
