"""Proofs that no value is an instance of two schemas. False means "not proved".

Uses only keywords that every validator of the draft checks: types, listed values, bounds, lengths, patterns, required
properties. `format` is not used, since validators may treat it as an annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from quicksilver.constrain.compile.rewrite.node import Document, Node, conjuncts, json_type, same_value
from quicksilver.constrain.compile.rewrite.regular import never_matches, no_string
from quicksilver.constrain.compile.rewrite.vocabulary import TYPES

MAX_DEPTH = 6
# Comparisons after which a proof is abandoned.
MAX_WORK = 300


class Disjoint:
    """Disjointness within a document, of values that also match every schema of `context`."""

    def __init__(self, document: Document, context: Sequence[Node] = (), work: Iterator[int] | None = None) -> None:
        self._document = document
        self._context = list(context)
        self._work = count() if work is None else work

    def holds(self, a: Node, b: Node, depth: int = MAX_DEPTH) -> bool:
        """Whether it is proved that no value matches both."""
        left, right = (conjuncts(self._document, node) + self._context for node in (a, b))
        if any(member.never for member in (*left, *right)):
            return True
        if depth == 0 or next(self._work) > MAX_WORK:
            return False
        shared = possible_types(left) & possible_types(right)
        if all(self._is_apart(kind, left, right, depth) for kind in shared):
            return True
        return self._branches_apart(left, b, depth) or self._branches_apart(right, a, depth)

    def shared_types(self, a: Node, b: Node) -> set[str]:
        """JSON types of values that may match both."""
        if self.holds(a, b):
            return set()
        left, right = (conjuncts(self._document, node) + self._context for node in (a, b))
        shared = possible_types(left) & possible_types(right)
        return {kind for kind in shared if not self._is_apart(kind, left, right, MAX_DEPTH)}

    def _branches_apart(self, members: list[Node], other: Node, depth: int) -> bool:
        """Whether a union among `members` has only branches that exclude `other`."""
        unions = [member.get(word) for member in members for word in ("anyOf", "oneOf") if member.get(word)]
        return any(all(self.holds(branch, other, depth - 1) for branch in union) for union in unions)

    def _is_apart(self, kind: str, left: list[Node], right: list[Node], depth: int) -> bool:
        """Whether no value of one JSON type can match both sides."""
        if values_apart(kind, left, right) or values_apart(kind, right, left):
            return True
        if kind == "object":
            return self._objects_apart(left, right, depth)
        if kind == "array":
            return ranges_apart(left, right, "minItems", "maxItems") or self._items_apart(left, right, depth)
        if kind == "string":
            return ranges_apart(left, right, "minLength", "maxLength") or texts_apart(left, right)
        return kind == "number" and numbers_apart(left, right)

    def _objects_apart(self, left: list[Node], right: list[Node], depth: int) -> bool:
        """Whether a property that one side requires cannot satisfy both."""
        inner = Disjoint(self._document, work=self._work)
        demanded = {name: None for member in (*left, *right) for name in member.get("required") or ()}
        for name in demanded:
            mine, theirs = property_schemas(left, name), property_schemas(right, name)
            if any(sub.never for sub in (*mine, *theirs)):
                return True
            if any(inner.holds(a, b, depth - 1) for a in mine for b in theirs if a is not b):
                return True
        return ranges_apart(left, right, "minProperties", "maxProperties")

    def _items_apart(self, left: list[Node], right: list[Node], depth: int) -> bool:
        """Whether a first item must exist and cannot satisfy both."""
        if not any((member.get("minItems") or 0) > 0 for member in (*left, *right)):
            return False
        inner = Disjoint(self._document, work=self._work)
        return any(inner.holds(a, b, depth - 1) for a in first_items(left) for b in first_items(right))


def possible_types(members: Iterable[Node]) -> set[str]:
    """JSON types that a value of all `members` may have."""
    found = set(TYPES)
    for member in members:
        stated = member.get("type")
        if stated is not None:
            found &= {"number" if t == "integer" else t for t in stated}
        if member.get("enum") is not None:
            found &= {json_type(value) for value in member.get("enum")}
    return found


def values_apart(kind: str, listing: list[Node], other: list[Node]) -> bool:
    """Whether one side lists its values and the other refuses each of them."""
    lists = [member.get("enum") for member in listing if member.get("enum") is not None]
    if not lists:
        return False
    values = [value for value in lists[0] if json_type(value) == kind]
    return all(any(refuses(member, value) for member in (*listing, *other)) for value in values)


def refuses(node: Node, value: Any) -> bool:
    """Whether the plain keywords of `node` refuse `value`."""
    if node.get("enum") is not None and not any(same_value(value, allowed) for allowed in node.get("enum")):
        return True
    stated = node.get("type")
    if stated is not None and not any(has_type(value, name) for name in stated):
        return True
    if isinstance(value, str):
        return refuses_text(node, value)
    if json_type(value) == "number":
        return any(breaks(value, node.get(word)) for word, breaks in NUMBER_TESTS.items() if node.get(word) is not None)
    return isinstance(value, dict) and any(name not in value for name in node.get("required") or ())


def refuses_text(node: Node, text: str) -> bool:
    least, most, pattern = (node.get(word) for word in ("minLength", "maxLength", "pattern"))
    return (
        (least is not None and len(text) < least)
        or (most is not None and len(text) > most)
        or (pattern is not None and never_matches(pattern, text))
    )


NUMBER_TESTS: dict[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, bound: value < bound,
    "maximum": lambda value, bound: value > bound,
    "exclusiveMinimum": lambda value, bound: value <= bound,
    "exclusiveMaximum": lambda value, bound: value >= bound,
}


def has_type(value: Any, name: str) -> bool:
    if name == "integer":
        return json_type(value) == "number" and float(value).is_integer()
    return json_type(value) == name


def texts_apart(left: list[Node], right: list[Node]) -> bool:
    """Whether patterns and lengths together leave no string."""
    words = ("pattern", "minLength", "maxLength")
    facets = [{word: node.get(word)} for node in (*left, *right) for word in words if node.get(word) is not None]
    return any("pattern" in facet for facet in facets) and no_string(facets)


def ranges_apart(left: list[Node], right: list[Node], least: str, most: str) -> bool:
    """Whether a minimum of one side is above a maximum of the other."""
    return any(low > high for low, high in bounds(left, right, least, most))


def numbers_apart(left: list[Node], right: list[Node]) -> bool:
    """The same as `ranges_apart`, with exclusive bounds."""
    touching = [
        ("exclusiveMinimum", "maximum"),
        ("minimum", "exclusiveMaximum"),
        ("exclusiveMinimum", "exclusiveMaximum"),
    ]
    return ranges_apart(left, right, "minimum", "maximum") or any(
        low >= high for least, most in touching for low, high in bounds(left, right, least, most)
    )


def bounds(left: list[Node], right: list[Node], least: str, most: str) -> Iterable[tuple[float, float]]:
    """All pairs of a lower bound of one side and an upper bound of the other."""
    for a, b in ((left, right), (right, left)):
        for low in (node.get(least) for node in a):
            for high in (node.get(most) for node in b):
                if low is not None and high is not None:
                    yield low, high


def property_schemas(members: list[Node], name: str) -> list[Node]:
    """Schemas that the value of property `name` must match."""
    found: list[Node] = []
    for member in members:
        listed = member.get("properties") or {}
        if name in listed:
            found.append(listed[name])
        elif member.get("additionalProperties") is not None and not member.get("patternProperties"):
            found.append(member.get("additionalProperties"))
    return found


def first_items(members: list[Node]) -> list[Node]:
    firsts = [(member.get("prefixItems") or [member.get("items")])[0] for member in members]
    return [first for first in firsts if first is not None]
