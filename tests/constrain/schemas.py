"""Small random schemas and values over few names and constants, so that they often match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "kind"])
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
PATTERNS = ["^a", "b$", "^[ax]*$", "^(?=.*b)[ab]*$", "^(?!b)a*$", "^(?!a)[ab]*$"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([0.5, 1.0, -1.5]),
    st.sampled_from(["", "a", "ab", "x"]),
)


def instances() -> st.SearchStrategy[Any]:
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=6,
    )


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        TYPES.map(lambda name: {"type": name}),
        st.lists(TYPES, min_size=1, max_size=3, unique=True).map(lambda names: {"type": names}),
        st.lists(SCALARS, min_size=1, max_size=3, unique_by=repr).map(lambda values: {"enum": values}),
        SCALARS.map(lambda value: {"const": value}),
        st.fixed_dictionaries(
            {"type": st.just("integer")}, optional={"minimum": st.integers(-2, 3), "maximum": st.integers(-2, 3)}
        ),
        st.fixed_dictionaries(
            {"type": st.just("string")}, optional={"minLength": st.integers(0, 2), "maxLength": st.integers(0, 2)}
        ),
        st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
        st.just({}),
    )


def composites(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    objects = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.dictionaries(st.sampled_from([".*", "^a", "d$"]), inner, max_size=2),
            "propertyNames": st.sampled_from(
                [{"enum": ["a"]}, {"not": {"enum": ["a"]}}, {"anyOf": [{"pattern": "^k"}, {"const": "b"}]}]
            ),
            "minProperties": st.integers(0, 1),
            "maxProperties": st.integers(0, 2),
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=1),
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
            "unevaluatedProperties": st.booleans() | inner,
            "if": inner,
            "then": inner,
            "oneOf": several,
            "anyOf": several,
            "not": inner,
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "prefixItems": several,
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 3),
            "contains": inner,
            "uniqueItems": st.booleans(),
            "unevaluatedItems": st.booleans() | inner,
            "anyOf": several,
            "if": inner,
            "then": inner,
        },
    )
    joined = st.sampled_from(["anyOf", "oneOf", "allOf"]).flatmap(lambda word: several.map(lambda subs: {word: subs}))
    conditions = st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner})
    return st.one_of(objects, arrays, joined, conditions, inner.map(lambda sub: {"not": sub}))


def schemas() -> st.SearchStrategy[Any]:
    return st.recursive(leaves(), composites, max_leaves=6)


def unique_lists() -> st.SearchStrategy[Any]:
    """Arrays of strings with `uniqueItems`, alone or beside other schemas of the same array."""
    strings = st.one_of(
        st.just({"type": "string"}),
        st.sets(st.sampled_from(["", "a", "ab", "abc", "b", "ba", "é", '"', "c"]), min_size=1).map(
            lambda values: {"enum": sorted(values)}
        ),
        st.sampled_from(["^a+$", "^[a-c]+$", "b", "^[a-c]{1,2}$"]).map(lambda p: {"type": "string", "pattern": p}),
        st.integers(0, 2).map(lambda least: {"type": "string", "minLength": least}),
    )
    items = st.one_of(strings, *(st.lists(strings, min_size=2, max_size=2).map(join(w)) for w in ("anyOf", "allOf")))
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": items, "uniqueItems": st.just(True)},
        optional={"minItems": st.integers(0, 4), "maxItems": st.integers(2, 5)},
    )
    beside = st.fixed_dictionaries({"type": st.just("array")}, optional={"items": items, "minItems": st.integers(0, 3)})
    pairs = st.tuples(arrays, beside).map(list)
    return st.one_of(arrays, *(pairs.map(join(word)) for word in ("anyOf", "allOf")))


def join(word: str) -> Callable[[list[Any]], dict[str, Any]]:
    return lambda schemas: {word: schemas}
