"""What a template may do, and how long."""

from __future__ import annotations

import itertools

import pytest

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.text import template_sandbox
from quicksilver.text.chat import ChatTemplate, Message
from tests.support.fakes import ByteTokenizer


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
