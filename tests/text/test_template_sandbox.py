"""What a template may do, and how long."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.text import template_sandbox
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.template_sandbox import Quoting, unquote
from tests.support.fakes import ByteTokenizer

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


def render(source: str, content: str = "hi") -> str:
    tokenizer = ByteTokenizer()
    return tokenizer.decode(ChatTemplate.from_source(tokenizer, source).render([Message("user", content)]).ids)


def test_template_may_ask_for_the_date_and_numbers() -> None:
    assert render("{{ strftime_now('%Y')[:2] }} {{ 7 % 4 * 2 }} {{ '{:>3}'.format(1) }}") == "20 6   1"
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


_ESCAPES = [
    "{{ messages.__class__.__mro__ }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ 'a' * 1000000000 }}",
    "{{ 2 ** 100000000 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ 'a'.center(1000000000) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in range(1000000) %}{% endfor %}",
    "{{ nothing.here }}",
    "{% include 'file' %}",
]


@pytest.mark.parametrize("source", _ESCAPES)
def test_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot write these messages"):
        render(source)


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a' | center(9) }}", "{{ x", "{{ '" + "(" * 3 + "' | nothing }}"])
def test_template_that_does_not_compile_is_refused(source: str) -> None:
    with pytest.raises(CheckpointRefused, match="chat template"):
        render(source)


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(template_sandbox, "MAX_CHARS", 1000)


_RANGES = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"


@pytest.mark.usefixtures("short_time")
def test_template_that_lingers_is_cut_off() -> None:
    with pytest.raises(InvalidRequest, match=r"more than 0\.05 seconds"):
        render(_RANGES)


def test_a_template_may_wait_for_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count(step=3600)
    monkeypatch.setattr("time.monotonic", lambda: float(next(hours)))
    assert render("{% for a in range(3) %}{{ a }}{% endfor %}") == "012"


@pytest.mark.usefixtures("short_time")
def test_template_that_writes_without_end_is_cut_off() -> None:
    with pytest.raises(InvalidRequest, match="more than 1000 characters"):
        render("{% for a in range(9999) %}{{ a }} {% endfor %}")
