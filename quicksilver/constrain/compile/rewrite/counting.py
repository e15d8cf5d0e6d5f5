"""Keywords that count or compare members: property counts, `contains`, `uniqueItems`.

A grammar cannot count, so each keyword becomes a union of cases if there are few of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations, permutations
from math import comb, perm
from typing import TYPE_CHECKING, Any

from quicksilver.constrain.compile.rewrite.algebra import all_of, any_of
from quicksilver.constrain.compile.rewrite.node import Contains, Document, Node, conjuncts, same_value
from quicksilver.constrain.compile.rewrite.vocabulary import TYPES, Json
from quicksilver.constrain.places import mark

if TYPE_CHECKING:
    from quicksilver.constrain.compile.rewrite.rewriter import Rewriter

MAX_CASES = 64
# Positions at which an item that `contains` requires may be.
MAX_POSITIONS = 4


def min_properties(rewriter: Rewriter, node: Node, _least: int) -> Json:
    """`minProperties` and `maxProperties` together, since their cases depend on each other."""
    least, most = node.get("minProperties"), node.get("maxProperties")
    required = set(node.get("required") or ())
    named = node.get("properties") or {}
    optional = [name for name, sub in named.items() if name not in required and not sub.never]
    more = max(0, (least or 0) - len(required))
    room = None if most is None else most - len(required)
    if room is not None and room < 0:
        return False
    if not optional:
        return native_count(rewriter, node, more)
    cases = property_sets(optional, more, room)
    if cases is None:
        return rewriter.leave_to_validation(
            "minProperties", node.at, "too many sets of properties satisfy the count", True
        )
    ways = [chosen(case, named, required, room) for case in cases]
    if is_open(node) and more <= 1:
        rest = {"properties": dict.fromkeys(optional, False)}
        ways.append(all_of([rest, native_count(rewriter, node, more)]))
    return any_of(ways)


def max_properties(rewriter: Rewriter, node: Node, most: int) -> Json:
    return True if node.get("minProperties") is not None else min_properties(rewriter, node, most)


def native_count(rewriter: Rewriter, node: Node, more: int) -> Json:
    """The counts unchanged, for unlisted properties. Their names may repeat, so a minimum of two needs validation."""
    counts = {word: node.get(word) for word in ("minProperties", "maxProperties") if node.get(word) is not None}
    if more < 2:
        return counts or True
    return rewriter.leave_to_validation("minProperties", node.at, "unlisted properties might repeat a name", counts)


def property_sets(optional: list[str], more: int, room: int | None) -> list[tuple[str, ...]] | None:
    """Sets of optional properties that satisfy the count; None if there are too many."""
    sizes = [more] if room is None else range(more, min(room, len(optional)) + 1)
    if sum(comb(len(optional), size) for size in sizes) > MAX_CASES:
        return None
    return [case for size in sizes for case in combinations(optional, size)]


def chosen(case: tuple[str, ...], named: dict[str, Node], required: set[str], room: int | None) -> Json:
    """An object with these optional properties; with an upper bound it has no others."""
    if room is None:
        return {"required": list(case)} if case else True
    keep = {*case, *required}
    return {
        "required": list(case),
        "properties": {name: name in keep for name in [*named, *sorted(required - named.keys())]},
        "additionalProperties": False,
    }


def is_open(node: Node) -> bool:
    """Whether properties that are not listed may appear."""
    extra = node.get("additionalProperties")
    return bool(node.get("patternProperties")) or extra is None or not extra.never


def contains(rewriter: Rewriter, node: Node, wanted: Contains) -> Json:
    """The required items are the first ones; a single one may be at any of the first positions."""
    item = rewriter.enforce(wanted.item)
    least, most = wanted.at_least, wanted.at_most
    if most is not None:
        if most < least:
            return {"type": [t for t in TYPES if t != "array"]}
        rest = rewriter.complement(wanted.item)
        return {**beginning([item] * least), "items": rest, "minItems": least}
    if least == 0:
        return True
    if least > 1:
        return {"prefixItems": [item] * least, "minItems": least}
    places = min(MAX_POSITIONS, node.get("maxItems") or MAX_POSITIONS)
    return any_of([{"prefixItems": [*[True] * i, item], "minItems": i + 1} for i in range(places)])


def unique_items(rewriter: Rewriter, node: Node, is_unique: bool) -> Json:
    least, most = node.get("minItems") or 0, node.get("maxItems")
    if not is_unique or (most is not None and most <= 1):
        return True
    if has_too_few_values(rewriter.document, node, least):
        return False
    prefix, items = node.get("prefixItems") or [], node.get("items")
    if items is not None and items.never and are_pairwise_disjoint(rewriter, prefix):
        return True
    pool = None if items is None or prefix else finite_values(rewriter.document, items)
    cases = None if pool is None else distinct_lists(pool, least, most)
    if cases is not None:
        return any_of([exact_list(case) for case in cases])
    if rewriter.guardless is not None and node.at not in rewriter.guardless and are_strings(rewriter.document, items):
        rewriter.needs_guard = True
        return mark(node.at)
    why = "its items are neither a short list of values nor strings that can be continued"
    return rewriter.leave_to_validation("uniqueItems", node.at, why, True)


def are_strings(document: Document, node: Node | None, depth: int = 3) -> bool:
    """Whether it is proved that all instances of `node` are strings."""
    return (
        node is not None
        and depth > 0
        and any(
            member.get("type") == ("string",)
            or all(isinstance(value, str) for value in member.get("enum") or (None,))
            or all(
                are_strings(document, branch, depth - 1)
                for branch in member.get("anyOf") or member.get("oneOf") or (None,)
            )
            for member in conjuncts(document, node)
        )
    )


def has_too_few_values(document: Document, node: Node, least: int) -> bool:
    """Whether the first `least` items together have fewer than `least` distinct values."""
    prefix, items = node.get("prefixItems") or [], node.get("items")
    schemas = [*prefix[:least], *([items] if least > len(prefix) else [])]
    values = union(None if schema is None else finite_values(document, schema) for schema in schemas)
    return values is not None and len(values) < least


def are_pairwise_disjoint(rewriter: Rewriter, nodes: list[Node]) -> bool:
    return all(rewriter.are_disjoint(a, b) for a, b in combinations(nodes, 2))


def finite_values(document: Document, node: Node, depth: int = 3) -> list[Any] | None:
    """Values that include every instance of `node`; None where there is no short list of them."""
    if node.never:
        return []
    if depth == 0:
        return None
    lists = [own_values(document, member, depth) for member in conjuncts(document, node)]
    return min((values for values in lists if values is not None), key=len, default=None)


def own_values(document: Document, node: Node, depth: int) -> list[Any] | None:
    """The same, from the keywords of `node` alone."""
    if node.get("enum") is not None:
        return distinct(node.get("enum"))
    branches = node.get("anyOf") or node.get("oneOf")
    if branches is not None:
        return union(finite_values(document, branch, depth - 1) for branch in branches)
    return union(values_of_type(node, name) for name in node.get("type") or TYPES)


def union(pools: Iterable[list[Any] | None]) -> list[Any] | None:
    """The distinct values of all lists; None if one of them is None."""
    found: list[Any] = []
    for pool in pools:
        if pool is None:
            return None
        found += pool
    return distinct(found)


def values_of_type(node: Node, name: str) -> list[Any] | None:
    """The instances of one type, if there are few."""
    if name in ("null", "boolean"):
        return [None] if name == "null" else [True, False]
    if name == "integer":
        return integers_between(node)
    empty, most_word = {"string": ("", "maxLength"), "array": ([], "maxItems"), "object": ({}, "maxProperties")}.get(
        name, (None, "")
    )
    return [empty] if node.get(most_word) == 0 else None


def integers_between(node: Node) -> list[Any] | None:
    low, high = node.get("minimum"), node.get("maximum")
    if low is None or high is None or high - low >= MAX_CASES:
        return None
    return list(range(math.ceil(low), math.floor(high) + 1))


def distinct(values: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if not any(same_value(value, other) for other in kept):
            kept.append(value)
    return kept


def distinct_lists(pool: list[Any], least: int, most: int | None) -> list[tuple[Any, ...]] | None:
    """Lists without repetition: in every order if there are few, otherwise in the order of the pool."""
    sizes = range(least, min(len(pool), len(pool) if most is None else most) + 1)
    if sum(perm(len(pool), size) for size in sizes) <= MAX_CASES:
        return [case for size in sizes for case in permutations(pool, size)]
    if sum(comb(len(pool), size) for size in sizes) <= MAX_CASES:
        return [case for size in sizes for case in combinations(pool, size)]
    return None


def exact_list(values: tuple[Any, ...]) -> Json:
    listed = beginning([{"enum": [value]} for value in values])
    return {**listed, "minItems": len(values), "maxItems": len(values)}


def beginning(items: list[Any]) -> dict[str, Any]:
    """`prefixItems`, which must not be empty."""
    return {"prefixItems": items} if items else {}
