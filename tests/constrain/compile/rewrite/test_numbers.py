"""Numbers that llguidance would round are tightened or refused."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.rewrite.numbers import EXACT, LARGEST, exact_bounds
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from tests.constrain.walks import admits, schema_spec


def test_bounds_beyond_a_double_move_inwards() -> None:
    low, high = 2**60 + 1, 2**61 + 1
    out = exact_bounds({"minimum": low, "maximum": high, "type": "integer"}, "")
    assert out["minimum"] >= low
    assert out["maximum"] <= high
    assert out["type"] == "integer"
    assert float(out["minimum"]) == out["minimum"]


def test_bounds_beyond_64_bits_are_limited() -> None:
    out = exact_bounds({"minimum": -(10**30), "exclusiveMaximum": 1e300}, "")
    assert out == {"minimum": -LARGEST, "exclusiveMaximum": LARGEST}
    assert admits({"type": "integer", "maximum": 10**25}, 10**18, 1) == [True, True]


@pytest.mark.parametrize("words", [{"minimum": 10**19}, {"maximum": -(10**19)}])
def test_bounds_that_admit_no_number_are_refused(words: dict[str, int]) -> None:
    with pytest.raises(Unenforceable, match="bounds beyond"):
        exact_bounds(words, "")


@pytest.mark.parametrize("value", [EXACT + 1, [1, {"a": -(2**60)}], 1e300, "\x01", ["ok", "\x7f"]])
def test_listed_values_that_would_change_are_refused(value: object) -> None:
    with pytest.raises(Unenforceable) as caught:
        schema_spec({"enum": [value]})
    assert caught.value.keyword == "enum"


def test_ordinary_values_pass() -> None:
    values = [EXACT, -1.5, 0, True, None, "\n", [], {}]
    assert admits({"enum": values}, *values) == [True] * len(values)


def test_an_upper_bound_that_rounds_up_moves_down() -> None:
    bound = 2**60 + 129
    assert float(bound) > bound
    assert exact_bounds({"maximum": bound}, "")["maximum"] <= bound


@pytest.mark.parametrize(
    ("schema", "refused", "admitted"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, 0, 0.25),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, 1, 1.25),
        ({"minimum": -1.5, "exclusiveMaximum": -1}, -1, -1.25),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, 0, 0.5),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.1, "multipleOf": 0.01}, 0, 0.05),
        ({"maximum": 1.5, "not": {"maximum": 1}}, 1, 1.5),
        ({"minimum": 0, "maximum": 0.5, "not": {"enum": [0, 0.5]}}, 0, 0.25),
    ],
)
def test_an_exclusive_bound_at_an_integer_is_not_admitted(schema: Any, refused: float, admitted: float) -> None:
    assert admits({"type": "number", **schema}, refused, admitted) == [False, True]


def test_exclusive_bounds_keep_the_numbers_next_to_them() -> None:
    assert admits({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, 0, 1, 2) == [False, True, False]
    assert admits({"type": "number", "exclusiveMaximum": 0}, -1e-9, -1, 0) == [False, True, False]
    assert admits({"type": "number", "exclusiveMinimum": 10**16}, 10**16, 10**16 + 2) == [False, True]


def test_multiples_of_a_fraction_have_no_more_digits_than_a_double() -> None:
    assert admits({"type": "number", "multipleOf": 1.5}, 71308899620093535, 1500000000001.5) == [False, True]
    assert admits({"type": "number", "multipleOf": 0.01, "minimum": 0}, 0.07, 12345678901234.5) == [True, False]
    assert admits({"type": "integer", "multipleOf": 3}, 3 * 10**17) == [True]
