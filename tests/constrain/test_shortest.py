"""Search for a short completion, and its limits."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain import shortest as module
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.literals import words_of
from quicksilver.constrain.shortest import Deadline, TooCostly, greedy, search, shortest
from quicksilver.constrain.source import FormatKind, ResponseFormat
from tests.constrain.walks import ALPHABET, automaton, schema_spec

FOREVER = Deadline(float("inf"))


@pytest.fixture(autouse=True)
def generous_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not change the results."""
    monkeypatch.setattr(module, "LIMIT_S", 60.0)


def completion(schema: Any, begun: str = "") -> str | None:
    matcher = automaton(schema_spec(schema))
    matcher.consume_tokens(ALPHABET.spell(begun.encode()) or [])
    path = shortest(matcher, ALPHABET)
    letters = {token_id: byte for byte, token_id in ALPHABET.byte_ids.items()}
    return None if path is None else bytes(letters[token_id] for token_id in path).decode()


@pytest.mark.parametrize(
    ("schema", "begun", "rest"),
    [
        ({"type": "object"}, "", "{}"),
        ({"type": "object"}, '{"a":[1,"x', '"]}'),
        ({"type": "string", "minLength": 3}, '"a', '00"'),
        ({"type": "integer", "minimum": 5}, "", "5"),
        ({"enum": ["only"]}, '"on', 'ly"'),
        ({"type": "array", "minItems": 2, "items": {"type": "boolean"}}, "[", "true,true]"),
        ({"type": "null"}, "null", ""),
    ],
)
def test_the_completion_is_short(schema: Any, begun: str, rest: str) -> None:
    found = completion(schema, begun)
    assert found is not None
    assert len(rest) <= len(found) <= len(rest) + 1


def test_the_search_ends_where_the_greedy_walk_does_not() -> None:
    matcher = automaton(compile_response_format(ResponseFormat(FormatKind.REGEX, "0*1")))
    assert greedy(matcher.deep_copy(), ALPHABET, FOREVER) is None
    assert search(matcher, ALPHABET, FOREVER) is not None
    assert shortest(matcher, ALPHABET) is not None


@pytest.mark.parametrize(
    ("pattern", "rest"),
    [
        (r"^.+\.(png|gif)$", '"a.png"'),
        (r"(^Hpt_|^Int_|_Armour_)", '"Hpt_"'),
        (r"^[a-z]+://x\.org/[0-9]{2}$", None),
    ],
)
def test_literal_words_of_a_pattern_shorten_the_completion(pattern: str, rest: str | None) -> None:
    properties = {"n": {"type": "integer", "minimum": 1}, "s": {"type": "string", "pattern": pattern}}
    spec = schema_spec({"type": "object", "properties": properties, "required": ["n", "s"]})
    path = shortest(automaton(spec), ALPHABET, words_of(spec.grammar))
    assert path is not None
    assert rest is None or len(path) <= len('{"n":1,"s":}') + len(rest)


def test_a_completion_beyond_the_limits_is_not_found() -> None:
    matcher = automaton(compile_response_format(ResponseFormat(FormatKind.REGEX, "[a-z]{5000}")))
    assert search(matcher, ALPHABET, FOREVER) is None
    assert greedy(matcher.deep_copy(), ALPHABET, FOREVER) is None


def test_a_search_stops_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", -1.0)
    with pytest.raises(TooCostly):
        completion({"type": "object"})


def test_a_search_does_not_advance_the_automaton() -> None:
    matcher = automaton(schema_spec({"type": "object"}))
    before = matcher.compute_bitmask()
    shortest(matcher, ALPHABET)
    search(matcher, ALPHABET, FOREVER)
    assert matcher.compute_bitmask() == before


def test_processor_time_is_read_only_after_as_much_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"perf_counter": 0.0, "thread_time": 0.0}
    reads = []

    def read(name: str) -> float:
        reads.append(name)
        return clocks[name]

    for name in clocks:
        monkeypatch.setattr(module, name, lambda name=name: read(name))
    deadline = Deadline(1.0)
    reads.clear()
    clocks["perf_counter"] = 0.9
    deadline.check()
    assert reads == ["perf_counter"]
    # The thread did not run all the time.
    clocks |= {"perf_counter": 5.0, "thread_time": 0.9}
    deadline.check()
    clocks["thread_time"] = 1.1
    with pytest.raises(TooCostly):
        deadline.check()
