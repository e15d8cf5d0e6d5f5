"""Complement: a schema that admits only values that another schema refuses.

A value is refused if it violates any keyword, so the complement is a union with one alternative for each violation. An
alternative that cannot be written is left out; the result then admits fewer values, which is sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from quicksilver.constrain.compile.rewrite.algebra import all_of, any_of
from quicksilver.constrain.compile.rewrite.node import Condition, Contains, Node, json_type
from quicksilver.constrain.compile.rewrite.numbers import EXACT, without_integer_edges
from quicksilver.constrain.compile.rewrite.patterns import other_than
from quicksilver.constrain.compile.rewrite.vocabulary import TYPES, Json

if TYPE_CHECKING:
    from quicksilver.constrain.compile.rewrite.rewriter import Rewriter

# Alternatives for one schema; more would make the grammar too large.
MAX_WAYS = 8
MAX_GAPS = 32


def complement(rewriter: Rewriter, node: Node, names: frozenset[str]) -> Json:
    """A schema that admits only what `node` refuses; False if no alternative can be written."""
    if node.never:
        return True
    ways: list[Json] = []
    for word, value in node.words.items():
        ways.extend(BREAKERS[word](rewriter, value) if word in BREAKERS else lost(rewriter))
    ways.extend(wrong_items(rewriter, node))
    ways.extend(forbidden_extras(rewriter, node, names))
    kept = sorted((way for way in flat(ways) if way is not False), key=oddness)
    if len(kept) > MAX_WAYS:
        lost(rewriter)
    return any_of(kept[:MAX_WAYS])


def oddness(way: Json) -> int:
    """Sort key: another type, another value or a missing property first, unusual property values last."""
    return 1 if isinstance(way, dict) and any(sub is not False for sub in way.get("properties", {}).values()) else 0


def lost(rewriter: Rewriter) -> list[Json]:
    """Counts an alternative that is not written."""
    rewriter.num_lost += 1
    return []


def flat(ways: Iterable[Json]) -> Iterable[Json]:
    for way in ways:
        if isinstance(way, dict) and list(way) == ["anyOf"]:
            yield from way["anyOf"]
        else:
            yield way


def wrong_type(rewriter: Rewriter, types: tuple[str, ...]) -> list[Json]:
    if "integer" in types and "number" not in types:
        lost(rewriter)
    held = {"number" if t == "integer" else t for t in types}
    others = [t for t in TYPES if t not in held]
    return [{"type": others}] if others else []


def wrong_value(rewriter: Rewriter, values: list[Any]) -> list[Json]:
    kinds = {json_type(value) for value in values}
    others = [t for t in TYPES if t not in kinds]
    ways: list[Json] = [{"type": others}] if others else []
    ways += other_numbers(rewriter, [v for v in values if json_type(v) == "number"])
    ways += other_strings(rewriter, [v for v in values if json_type(v) == "string"])
    flags = [v for v in values if json_type(v) == "boolean"]
    if len(flags) == 1:
        ways.append({"enum": [not flags[0]]})
    if {"array", "object"} & kinds:
        lost(rewriter)
    if "array" in kinds:
        ways.append({"type": "array", "minItems": 1 + max(len(v) for v in values if isinstance(v, list))})
    return ways


def other_numbers(rewriter: Rewriter, values: list[float]) -> list[Json]:
    """The intervals between the listed numbers."""
    points = sorted(set(values))
    if not points:
        return []
    if len(points) > MAX_GAPS or any(abs(point) > EXACT for point in points):
        return lost(rewriter)
    gaps: list[dict[str, Any]] = [{"exclusiveMaximum": points[0]}, {"exclusiveMinimum": points[-1]}]
    gaps += [{"exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in pairwise(points)]
    return [{"type": "number", **without_integer_edges(gap)} for gap in gaps]


def other_strings(rewriter: Rewriter, values: list[str]) -> list[Json]:
    if not values:
        return []
    pattern = other_than(values)
    return lost(rewriter) if pattern is None else [{"type": "string", "pattern": pattern}]


def missing_property(_rewriter: Rewriter, required: list[str]) -> list[Json]:
    return [{"type": "object", "properties": {name: False}} for name in required]


def wrong_property(rewriter: Rewriter, properties: dict[str, Node]) -> list[Json]:
    return [with_property(name, rewriter.complement(sub)) for name, sub in properties.items()]


def with_property(name: str, schema: Json) -> Json:
    return schema is not False and {"type": "object", "properties": {name: schema}, "required": [name]}


def forbidden_extras(rewriter: Rewriter, node: Node, names: frozenset[str]) -> list[Json]:
    """Properties that `additionalProperties` refuses."""
    extra = node.get("additionalProperties")
    if extra is None or node.get("patternProperties") or not names:
        return []
    listed = node.get("properties") or {}
    return [with_property(name, rewriter.complement(extra)) for name in sorted(names) if name not in listed]


def wrong_items(rewriter: Rewriter, node: Node) -> list[Json]:
    """The first item after the prefix violates `items`."""
    items = node.get("items")
    wrong = False if items is None else rewriter.complement(items)
    before = len(node.get("prefixItems") or ())
    return [] if wrong is False else [item_at(before, wrong)]


def item_at(index: int, schema: Json) -> Json:
    return {"type": "array", "prefixItems": [*[True] * index, schema], "minItems": index + 1}


def wrong_prefix(rewriter: Rewriter, prefix: list[Node]) -> list[Json]:
    ways = [rewriter.complement(sub) for sub in prefix]
    return [item_at(i, way) for i, way in enumerate(ways) if way is not False]


def no_property(rewriter: Rewriter, least: int) -> list[Json]:
    if least > 1:
        lost(rewriter)
    return [{"type": "object", "additionalProperties": False}] if least > 0 else []


def too_few(kind: str, most_word: str) -> Callable[[Rewriter, int], list[Json]]:
    return lambda _rewriter, least: [{"type": kind, most_word: least - 1}] if least > 0 else []


def too_many(kind: str, least_word: str) -> Callable[[Rewriter, int], list[Json]]:
    return lambda _rewriter, most: [{"type": kind, least_word: most + 1}]


def beyond(word: str) -> Callable[[Rewriter, float], list[Json]]:
    def ways(rewriter: Rewriter, bound: float) -> list[Json]:
        return lost(rewriter) if abs(bound) > EXACT else [{"type": "number", **without_integer_edges({word: bound})}]

    return ways


def none_of(rewriter: Rewriter, schemas: list[Node]) -> list[Json]:
    return [all_of([rewriter.complement(sub) for sub in schemas])]


def not_all(rewriter: Rewriter, schemas: list[Node]) -> list[Json]:
    return [rewriter.complement(sub) for sub in schemas]


def none_or_two(rewriter: Rewriter, schemas: list[Node]) -> list[Json]:
    """None of the branches, or at least two of them."""
    pairs = [(a, b) for a, b in combinations(schemas, 2) if not rewriter.are_disjoint(a, b)]
    if len(pairs) > MAX_WAYS:
        lost(rewriter)
    both = [all_of([rewriter.enforce(a), rewriter.enforce(b)]) for a, b in pairs[:MAX_WAYS]]
    return [*none_of(rewriter, schemas), *both]


def excluded(rewriter: Rewriter, schema: Node) -> list[Json]:
    return [rewriter.enforce(schema)]


def broken_condition(rewriter: Rewriter, condition: Condition) -> list[Json]:
    ways: list[Json] = []
    if condition.then is not None:
        ways.append(all_of([rewriter.enforce(condition.test), rewriter.complement(condition.then)]))
    if condition.otherwise is not None:
        ways.append(all_of([rewriter.complement(condition.test), rewriter.complement(condition.otherwise)]))
    return ways


def broken_needs(_rewriter: Rewriter, needs: dict[str, list[str]]) -> list[Json]:
    return [
        {"type": "object", "required": [key], "properties": {name: False}}
        for key, names in needs.items()
        for name in names
        if name != key
    ]


def broken_schemas(rewriter: Rewriter, needs: dict[str, Node]) -> list[Json]:
    return [all_of([{"type": "object", "required": [key]}, rewriter.complement(sub)]) for key, sub in needs.items()]


def not_containing(rewriter: Rewriter, wanted: Contains) -> list[Json]:
    if wanted.at_least > 1 or wanted.at_most is not None:
        lost(rewriter)
    return [{"type": "array", "items": rewriter.complement(wanted.item)}] if wanted.at_least == 1 else []


def elsewhere(rewriter: Rewriter, key: str) -> list[Json]:
    return [rewriter.complement(rewriter.document.target(key))]


BREAKERS: dict[str, Callable[[Rewriter, Any], list[Json]]] = {
    "$ref": elsewhere,
    "type": wrong_type,
    "enum": wrong_value,
    "required": missing_property,
    "properties": wrong_property,
    "prefixItems": wrong_prefix,
    "contains": not_containing,
    "minLength": too_few("string", "maxLength"),
    "maxLength": too_many("string", "minLength"),
    "minItems": too_few("array", "maxItems"),
    "maxItems": too_many("array", "minItems"),
    "minProperties": no_property,
    "minimum": beyond("exclusiveMaximum"),
    "exclusiveMinimum": beyond("maximum"),
    "maximum": beyond("exclusiveMinimum"),
    "exclusiveMaximum": beyond("minimum"),
    "allOf": not_all,
    "anyOf": none_of,
    "oneOf": none_or_two,
    "not": excluded,
    "if": broken_condition,
    "dependentRequired": broken_needs,
    "dependentSchemas": broken_schemas,
}
