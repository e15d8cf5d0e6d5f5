from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.text.channels import Detokenizer, Scanner
from quicksilver.text.tokenizer import Tokenizer
from tests.support.fakes import tiny_tokenizer

_TINY = tiny_tokenizer()
_STOPS = st.lists(st.text(alphabet="ab\né😀", min_size=1, max_size=4), max_size=3)


def cut(items: list[int], sizes: list[int]) -> list[list[int]]:
    """`items` in runs of the given sizes; the rest is the last run."""
    runs = []
    for size in sizes:
        runs.append(items[:size])
        items = items[size:]
    return [*runs, items]


def text_of(ids: list[int], stop: list[str], sizes: list[int]) -> tuple[str, str | None]:
    detokenizer = Detokenizer(_TINY, stop)
    text = "".join(detokenizer.push(run) for run in cut(ids, sizes))
    return text + detokenizer.finish(), detokenizer.stopped


@given(st.lists(st.integers(0, 272), max_size=40), st.lists(st.integers(0, 5), max_size=20))
def test_any_cut_gives_the_decoded_text(ids: list[int], sizes: list[int]) -> None:
    assert text_of(ids, [], sizes) == (_TINY.decode(ids), None)


@given(st.text(alphabet="ab\né😀", max_size=20), _STOPS, st.lists(st.integers(0, 5), max_size=20))
def test_any_cut_stops_at_the_same_place(text: str, stop: list[str], sizes: list[int]) -> None:
    ids = _TINY.encode(text)
    found, stopped = text_of(ids, stop, sizes)
    assert (found, stopped) == text_of(ids, stop, [])
    ends = [text.find(s) + len(s) for s in stop if s in text]
    assert (stopped is None) is (not ends)
    if stopped is None:
        assert found == text
    else:
        assert found + stopped == text[: min(ends)]


@given(st.text(max_size=20))
def test_deltas_are_whole_code_points_and_come_early(text: str) -> None:
    detokenizer = Detokenizer(_TINY)
    deltas = [detokenizer.push([i]) for i in _TINY.encode(text)]
    assert "".join(deltas) == text
    assert [delta for delta in deltas if delta] == list(text)
    assert detokenizer.finish() == ""


def test_naughty_strings_token_by_token(tokenizer: Tokenizer, naughty_strings: list[str]) -> None:
    for text in naughty_strings:
        ids = tokenizer.encode(text)
        detokenizer = Detokenizer(tokenizer)
        deltas = [detokenizer.push([i]) for i in ids]
        assert "".join(deltas) + detokenizer.finish() == tokenizer.decode(ids)
        assert text.count("\ufffd") == "".join(deltas).count("\ufffd")


def test_broken_code_point_becomes_a_replacement_only_at_the_end() -> None:
    detokenizer = Detokenizer(_TINY)
    assert detokenizer.push(_TINY.encode("é")[:1]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_invalid_byte_of_the_model_is_shown_as_such() -> None:
    assert text_of([17 + 0xFF, *_TINY.encode("a")], [], []) == ("\ufffda", None)


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    detokenizer = Detokenizer(_TINY, ["\n\n", "END"])
    assert detokenizer.push(_TINY.encode("one\n")) == "one"
    assert detokenizer.push(_TINY.encode("two E")) == "\ntwo "
    assert detokenizer.push(_TINY.encode("N")) == ""
    assert detokenizer.push(_TINY.encode("D of it")) == ""
    assert detokenizer.stopped == "END"
    assert detokenizer.push(_TINY.encode("more")) + detokenizer.finish() == ""


def test_held_text_is_released_when_nothing_follows() -> None:
    detokenizer = Detokenizer(_TINY, ["abc"])
    assert detokenizer.push(_TINY.encode("xab")) == "x"
    assert detokenizer.finish() == "ab"
    assert detokenizer.stopped is None


def test_stop_string_completed_by_the_last_broken_byte_counts() -> None:
    detokenizer = Detokenizer(_TINY, ["\ufffd"])
    detokenizer.push([*_TINY.encode("a"), _TINY.encode("é")[0]])
    assert (detokenizer.finish(), detokenizer.stopped) == ("", "\ufffd")


def test_special_tokens_and_empty_stop_strings_do_nothing() -> None:
    assert text_of([1, *_TINY.encode("hi"), 2], [""], []) == ("hi", None)


def test_each_token_has_the_offset_of_its_text(smollm2: Tokenizer) -> None:
    text = "naïve 😀 café"
    ids = smollm2.encode(text)
    detokenizer = Detokenizer(smollm2)
    detokenizer.push([ids[0], 1, *ids[1:]])
    offsets = [detokenizer.token_offsets[0], *detokenizer.token_offsets[2:]]
    assert detokenizer.token_offsets[1] == offsets[1]
    assert offsets == [len(smollm2.decode(ids[:n]).rstrip("\ufffd")) for n in range(len(ids))]


@pytest.mark.parametrize(
    ("needles", "text", "expected"),
    [
        (["bc", "abcd"], "abcd", ("a", "bc", "d")),
        (["abc", "bc"], "xabc!", ("x", "abc", "!")),
        (["aab"], "aaab", ("a", "aab", "")),
        ([], "abc", ("abc", None, "")),
    ],
)
def test_string_completed_first_is_found(needles: list[str], text: str, expected: tuple[str, str | None, str]) -> None:
    assert Scanner(needles).push(text) == expected


@pytest.mark.parametrize("sizes", [[], [1] * 20, [2, 1, 3]])
@pytest.mark.parametrize(
    ("said", "text", "stopped"),
    [
        (" comp", "", None),
        (" compute(x)", "ute(", "x"),
        (" com", "", None),
        (" co + x", " co + ", "x"),
        ("", "", None),
        (" comp comp", " comp", None),
    ],
)
def test_lead_is_left_out_and_no_stop_is_found_in_it(
    said: str, text: str, stopped: str | None, sizes: list[int]
) -> None:
    detokenizer = Detokenizer(_TINY, ["x", "om", " c_"], " comp")
    found = "".join(detokenizer.push(run) for run in cut(_TINY.encode(said), sizes))
    if said == " comp comp":
        assert (found, detokenizer.stopped) == (" c", "om")
        return
    assert (found + detokenizer.finish(), detokenizer.stopped) == (text, stopped)
