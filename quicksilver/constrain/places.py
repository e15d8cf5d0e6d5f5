"""Where a text needs `uniqueItems` checked at run time, for arrays of strings: no grammar can compare values.

A compiled schema marks each array whose items must be unique. A place is the set of subschemas that may apply to a
value of the text, with all alternatives, so an array is guarded if any of them has the mark. At run time `unique.py`
refuses repeated strings there. `dead_ends` proves beforehand that a new string is always left where the grammar wants
one: either each string can be made longer, or the strings are listed and suffice for `minItems`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import cached_property, reduce
from itertools import islice
from typing import Any

from quicksilver.constrain.compile.rewrite.vocabulary import Json

# Beginning of the annotation of a marked array; llguidance ignores annotations.
MARK = "uniqueItems at "
# Places of one schema that are searched for dead ends.
MAX_PLACES = 2_000
# Keywords that do not apply to strings.
OTHERS = frozenset(
    (
        *("$comment", "$defs", "items", "prefixItems", "minItems", "maxItems"),
        *("properties", "additionalProperties", "patternProperties", "required", "minProperties", "maxProperties"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
# Levels of `$ref`, `allOf` and `anyOf` in the schema of an item.
MAX_DEPTH = 6
# The end of a pattern that repeats a class with letters or digits, so that a match can be continued.
REPEATS = re.compile(r"(?:(?<!\\)\[(?!\^)(?:[^\]\\]|\\.)*(?:a-z|A-Z|0-9|\\d|\\w)(?:[^\]\\]|\\.)*\]|\\w|\\d)[+*]\$")


class Kind(Enum):
    """Infinite sets of strings, and those that are not understood."""

    ANY = 0
    # Every string is the beginning of a member.
    LONG = 1
    # Every beginning of a member is the beginning of infinitely many members.
    ENDLESS = 2
    UNKNOWN = 3


Strings = frozenset[str] | Kind
NO_STRINGS: frozenset[str] = frozenset()


def strings_of(schema: Any, definitions: dict[str, Any], depth: int = MAX_DEPTH) -> Strings:
    """The strings that a compiled schema admits."""
    if not isinstance(schema, dict):
        return NO_STRINGS if schema is False else Kind.ANY
    if "string" not in as_list(schema.get("type", "string")):
        return NO_STRINGS
    found: Strings = Kind.ANY
    for word, value in schema.items():
        found = common(found, _strings_of_word(word, value, definitions, depth))
    return found


def _strings_of_word(word: str, value: Any, definitions: dict[str, Any], depth: int) -> Strings:
    if word == "type" or word in OTHERS:
        return Kind.ANY
    if word == "enum":
        return frozenset(item for item in value if isinstance(item, str))
    if word == "minLength":
        return Kind.LONG
    if word == "pattern":
        return Kind.ENDLESS if is_extendable_pattern(value) else Kind.UNKNOWN
    if depth == 0 or word not in ("$ref", "allOf", "anyOf"):
        return Kind.UNKNOWN
    if word == "$ref":
        return strings_of(definitions.get(value.rsplit("/", 1)[1]), definitions, depth - 1)
    join = common if word == "allOf" else either
    return reduce(join, [strings_of(part, definitions, depth - 1) for part in value])


def common(a: Strings, b: Strings) -> Strings:
    """The intersection."""
    if a is Kind.ANY or b is Kind.ANY:
        return b if a is Kind.ANY else a
    if NO_STRINGS in (a, b):
        return NO_STRINGS
    if isinstance(a, Kind) and isinstance(b, Kind):
        return Kind.UNKNOWN if Kind.LONG not in (a, b) else max(a, b, key=lambda kind: kind.value)
    return Kind.UNKNOWN if isinstance(a, Kind) or isinstance(b, Kind) else a & b


def either(a: Strings, b: Strings) -> Strings:
    """The union."""
    for kind in (Kind.ANY, Kind.LONG):
        if kind in (a, b) and Kind.UNKNOWN not in (a, b):
            return kind
    if NO_STRINGS in (a, b):
        return b if a == NO_STRINGS else a
    if isinstance(a, Kind) or isinstance(b, Kind):
        return Kind.ENDLESS if a is b is Kind.ENDLESS else Kind.UNKNOWN
    return a | b


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def is_extendable_pattern(pattern: str) -> bool:
    """Whether each match can be continued to longer ones: it is open at the end, or repeats a class there."""
    if "$" not in pattern and "\\" not in pattern:
        return True
    end = REPEATS.search(pattern)
    return "|" not in pattern and end is not None and end.end() == len(pattern) and pattern.count("$") == 1


class ValuePlace:
    """The subschemas that may apply to a value, and those for its members."""

    def __init__(self, places: Places, nodes: tuple[dict[str, Any], ...]) -> None:
        self.nodes = nodes
        self.is_unique = any(node.get("$comment", "").startswith(MARK) for node in nodes)
        self._places = places
        self._members: dict[str | None, ValuePlace] = {}
        self._items: ValuePlace | None = None

    @cached_property
    def names(self) -> set[str]:
        return {name for node in self.nodes for name in node.get("properties", ())}

    def member(self, name: str | None) -> ValuePlace:
        """The place of a property; None is a name that no subschema lists."""
        key = name if name in self.names else None
        if key not in self._members:
            found: list[Any] = []
            for node in self.nodes:
                properties = node.get("properties", {})
                found += node.get("patternProperties", {}).values()
                found.append(properties[key] if key in properties else node.get("additionalProperties"))
            self._members[key] = self._places.of(found)
        return self._members[key]

    @cached_property
    def strings(self) -> Strings:
        """The strings that an array at this place can have as items: UNKNOWN if it could run out of them."""
        if any("prefixItems" in node for node in self.nodes):
            return Kind.UNKNOWN
        found: list[Strings] = [self._places.strings_of(node["items"]) for node in self.nodes if "items" in node]
        found = [strings for strings in found if strings != NO_STRINGS]
        strings = reduce(common, [Kind.ANY, *found])
        if isinstance(strings, Kind):
            return strings
        if any(other != strings for other in found):
            return Kind.UNKNOWN
        is_enough = all(node.get("minItems", 0) <= len(strings) for node in self.nodes)
        return strings if is_enough and all(map(str.isprintable, strings)) else Kind.UNKNOWN

    @cached_property
    def listed(self) -> list[bytes]:
        """These strings as they are written in JSON, in order, if they are listed; otherwise none."""
        strings = NO_STRINGS if isinstance(self.strings, Kind) else self.strings
        return sorted(json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in strings)

    def has_left(self, beginning: bytes, used: Iterable[bytes]) -> bool:
        """Whether a string is left that begins like this, of those that an array at this place can have."""
        total = bisect_left(self.listed, beginning + b"\xff") - bisect_left(self.listed, beginning)
        return total == 0 or sum(text.startswith(beginning) for text in used) < total

    def item(self) -> ValuePlace:
        if self._items is None:
            nodes = self.nodes
            listed = [sub for node in nodes for sub in node.get("prefixItems", ())]
            self._items = self._places.of([*listed, *(node.get("items") for node in nodes)])
        return self._items


class Places:
    """All places of one compiled schema, created when they are first used."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._definitions = schema.get("$defs", {})
        self._known: dict[frozenset[int], ValuePlace] = {}
        self.root = self.of([schema])

    def of(self, schemas: Sequence[Any]) -> ValuePlace:
        """The place where these schemas apply, with the schemas that they refer to."""
        nodes: dict[int, dict[str, Any]] = {}
        pending = list(schemas)
        while pending:
            node = pending.pop()
            if not isinstance(node, dict) or id(node) in nodes:
                continue
            nodes[id(node)] = node
            pending += [sub for word in ("allOf", "anyOf", "oneOf") for sub in node.get(word, ())]
            if "$ref" in node:
                pending.append(self._definitions.get(node["$ref"].rsplit("/", 1)[1]))
        key = frozenset(nodes)
        if key not in self._known:
            self._known[key] = ValuePlace(self, tuple(nodes.values()))
        return self._known[key]

    def strings_of(self, schema: Any) -> Strings:
        return strings_of(schema, self._definitions)

    def all(self) -> Iterator[ValuePlace]:
        """Every place that a text can reach."""
        pending, seen = [self.root], {self.root}
        while pending:
            place = pending.pop()
            yield place
            around = {place.item(), *map(place.member, place.names), place.member(None)} - seen
            seen |= around
            pending += around


def guarded_places(grammar: str) -> Places | None:
    """The places of a grammar that is a compiled schema with marks; None if nothing is guarded."""
    if f'"$comment":"{MARK}' not in grammar:
        return None
    schema = json.loads(grammar)["grammars"][0].get("json_schema")
    return Places(schema) if isinstance(schema, dict) else None


def mark(at: str) -> dict[str, Any]:
    """The annotation of an array whose items must be unique; `at` is its JSON pointer in the schema as it was sent."""
    return {"$comment": MARK + at}


def dead_ends(schema: Json) -> set[str]:
    """The JSON pointers of marked arrays whose guard could refuse every continuation of a text, or may do so."""
    if not isinstance(schema, dict):
        return set()
    places = list(islice(Places(schema).all(), MAX_PLACES + 1))
    listed = (value for place in places for node in place.nodes for value in node.get("enum", ()))
    is_unclear = len(places) > MAX_PLACES or any(isinstance(value, list | dict) for value in listed)
    return {
        node["$comment"].removeprefix(MARK)
        for place in places
        if place.is_unique and (is_unclear or place.strings is Kind.UNKNOWN)
        for node in place.nodes
        if "$comment" in node
    }
