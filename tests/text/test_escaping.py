from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.text.escaping import Quoting, unquote

_NAMES = ("<|im_end|>", "<|im_start|>", "[MASK]", "</think>", "<s>", "word")
_QUOTING = Quoting(_NAMES)
_PATTERN = re.compile("|".join(map(re.escape, _NAMES)))
_TEXT = st.lists(
    st.one_of(st.sampled_from([*_NAMES, "<|", "|>", "im_end", "\U0010fffc", "\U0010fffd"]), st.text(max_size=4)),
    max_size=6,
).map("".join)


@given(_TEXT)
def test_unquote_gives_back_what_was_quoted(text: str) -> None:
    assert unquote(_QUOTING.quote(text)) == text


@given(st.sampled_from(_NAMES), st.data())
def test_no_special_token_is_spelled_with_help_of_the_template(name: str, data: st.DataObject) -> None:
    """The template writes a beginning and an end, the text supplies what is missing between them."""
    start = data.draw(st.integers(0, len(name)))
    end = data.draw(st.integers(start, len(name)))
    if start == end:
        return
    space = data.draw(st.sampled_from(["", " ", "\n"]))
    quoted = _QUOTING.quote(f"{space}{name[start:end]}{space}")
    assert not _PATTERN.search(f"{name[:start]}{quoted.strip()}{name[end:]}")


@given(_TEXT, _TEXT)
def test_two_quoted_texts_side_by_side_spell_no_special_token(left: str, right: str) -> None:
    joined = _QUOTING.quote(left) + _QUOTING.quote(right)
    assert not _PATTERN.search(joined)
    assert unquote(joined) == left + right


_VALUES = st.recursive(
    _TEXT | st.none(), lambda s: st.lists(s, max_size=3) | st.dictionaries(_TEXT, s, max_size=3), max_leaves=4
)


@settings(max_examples=40)
@given(_VALUES)
def test_json_values_keep_their_shape(value: object) -> None:
    assert _unquote_all(_QUOTING.quote_json(value)) == value


def _unquote_all(value: object) -> object:
    if isinstance(value, str):
        return unquote(value)
    if isinstance(value, dict):
        return {unquote(key): _unquote_all(item) for key, item in value.items()}
    return [_unquote_all(item) for item in value] if isinstance(value, list) else value


def test_words_of_json_schema_can_be_compared_with() -> None:
    assert _QUOTING.quote("object") == "object"
    assert _QUOTING.quote("objects") != "objects"


def test_surrounding_space_can_be_stripped() -> None:
    assert unquote(_QUOTING.quote("  <s> hi  ").strip()) == "<s> hi"


def test_tokenizer_without_special_tokens_needs_no_breaks() -> None:
    assert Quoting(()).quote("<|im_end|>") == "<|im_end|>"
