"""Numbers that llguidance would round are tightened or refused."""

from __future__ import annotations

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
