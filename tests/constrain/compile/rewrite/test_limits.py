"""Each limit admits its bound and refuses one more."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.constrain.compile.rewrite import limits
from quicksilver.errors import InvalidGrammar


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def of_bytes(size: int) -> dict[str, Any]:
    empty = len('{"description":""}')
    return {"description": "x" * (size - empty)}


def deep_value(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels - 2):
        value = [value]
    return {"default": value}


BOUNDS = [
    (nested, limits.MAX_DEPTH, "levels of nested schemas"),
    (of_bytes, limits.MAX_SCHEMA_BYTES, "bytes"),
    (deep_value, limits.MAX_NESTING, "levels of nested JSON"),
    (lambda n: {"properties": {f"p{i}": {} for i in range(n)}}, limits.MAX_PROPERTIES, "`properties`"),
    (lambda n: {"enum": list(range(n))}, limits.MAX_ENUM_VALUES, "`enum` values"),
    (lambda n: {"pattern": "a" * n}, limits.MAX_REGEX_CHARS, "`pattern`"),
    (lambda n: {"patternProperties": {"a" * n: {}}}, limits.MAX_REGEX_CHARS, "`pattern`"),
]


@pytest.mark.parametrize(("make", "bound", "what"), BOUNDS)
def test_the_bound_is_allowed_and_one_more_is_not(make: Any, bound: int, what: str) -> None:
    limits.limit_schema_size(make(bound))
    with pytest.raises(InvalidGrammar, match=what) as caught:
        limits.limit_schema_size(make(bound + 1))
    assert str(bound + 1) in caught.value.message


def test_properties_and_values_are_counted_over_the_whole_schema() -> None:
    half = {f"p{i}": {"enum": [1, 2, 3]} for i in range(limits.MAX_PROPERTIES // 2 + 1)}
    with pytest.raises(InvalidGrammar, match="`properties`"):
        limits.limit_schema_size({"properties": half, "$defs": {"x": {"properties": half}}})


def test_what_json_cannot_hold_is_refused() -> None:
    for value in (float("nan"), float("inf"), "\ud800", {1, 2}):
        with pytest.raises(InvalidGrammar, match="not JSON"):
            limits.limit_schema_size({"const": value})


def test_the_default_bounds_are_the_published_ones() -> None:
    found = (
        limits.MAX_SCHEMA_BYTES,
        limits.MAX_DEPTH,
        limits.MAX_PROPERTIES,
        limits.MAX_ENUM_VALUES,
        limits.MAX_REGEX_CHARS,
    )
    assert found == (262_144, 32, 1_000, 5_000, 1_024)
