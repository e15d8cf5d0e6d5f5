"""Reads a schema into a canonical form: 2020-12 keywords, resolved references, no annotations.

`Node.words` holds exactly the keywords that a validator of the schema's draft checks. `Node.extra` holds the keywords
of newer drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quicksilver.constrain.compile.rewrite.references import Place, Registry
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.compile.rewrite.vocabulary import Draft, escape, is_known


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One schema. Subschemas are Nodes; `$ref` holds a key for `Document.target`."""

    # JSON pointer of the schema in the document.
    at: str
    # Canonical keywords that a validator of the draft checks, in the order of the source.
    words: Mapping[str, Any] = field(default_factory=dict)
    # Keywords of newer drafts. They are enforced, but schema rewrites do not assume that instances satisfy them.
    extra: Mapping[str, Any] = field(default_factory=dict)
    # Whether this is the schema `false`, which no value satisfies.
    never: bool = False

    def get(self, word: str) -> Any:
        return self.words.get(word)


@dataclass(frozen=True, slots=True)
class Condition:
    """`if` with its branches; a missing branch is None."""

    test: Node
    then: Node | None
    otherwise: Node | None


@dataclass(frozen=True, slots=True)
class Contains:
    """`contains` with its counts."""

    item: Node
    at_least: int
    at_most: int | None


class Document:
    """A whole schema. Subschemas are read once, when they are first used."""

    def __init__(self, schema: Any, draft: Draft) -> None:
        self.draft = draft
        self._registry = Registry(schema, draft)
        self._nodes: dict[str, Node] = {}
        self.root = self.read(self._registry.root)

    def target(self, key: str) -> Node:
        """The target of a `$ref` key."""
        return self.read(self._registry.places[key])

    def read(self, place: Place) -> Node:
        node = self._nodes.get(place.at)
        if node is None:
            node = self._nodes[place.at] = self._read(place)
        return node

    def _read(self, place: Place) -> Node:
        raw = place.schema
        if isinstance(raw, bool):
            return Node(place.at, never=not raw)
        if not isinstance(raw, dict):
            raise Unenforceable("schema", place.at, "a schema is an object or a boolean")
        if self.draft <= Draft.SEVEN and "$ref" in raw:
            raw = {"$ref": raw["$ref"]}
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for word in raw:
            reader = READERS.get(word)
            if reader is not None:
                home = known if is_known(word, self.draft) else extra
                home.update(reader(self, place, raw))
        return Node(place.at, known, extra)

    def inside(self, place: Place, suffix: str, schema: Any) -> Node:
        return self.read(self._registry.inside(place, suffix, schema))

    def resolve(self, place: Place, reference: Any) -> str:
        return self._registry.resolve(place, reference)


def conjuncts(document: Document, node: Node, depth: int = 8) -> list[Node]:
    """`node` and the schemas that always hold with it: `allOf` members and `$ref` targets."""
    found = [node]
    if depth == 0:
        return found
    if node.get("$ref") is not None:
        found += conjuncts(document, document.target(node.get("$ref")), depth - 1)
    for sub in node.get("allOf") or ():
        found += conjuncts(document, sub, depth - 1)
    return found


Reader = Callable[[Document, Place, dict[str, Any]], dict[str, Any]]


def plain(word: str) -> Reader:
    return lambda _document, _place, raw: {word: raw[word]}


def counted(word: str) -> Reader:
    """Counts may be written as 2.0."""
    return lambda _document, _place, raw: {word: int(raw[word])}


def one(word: str) -> Reader:
    return lambda document, place, raw: {word: document.inside(place, f"/{word}", raw[word])}


def listed(word: str) -> Reader:
    return lambda document, place, raw: {word: nodes(document, place, word, raw[word])}


def mapped(word: str) -> Reader:
    def read(document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
        return {word: {name: document.inside(place, f"/{word}/{escape(name)}", sub) for name, sub in raw[word].items()}}

    return read


def nodes(document: Document, place: Place, word: str, schemas: list[Any]) -> list[Node]:
    return [document.inside(place, f"/{word}/{i}", schema) for i, schema in enumerate(schemas)]


def read_reference(document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
    return {"$ref": document.resolve(place, raw["$ref"])}


def read_recursive_reference(word: str) -> Reader:
    def read(document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
        if is_known(word, document.draft):
            if document._registry.is_dynamic:
                raise Unenforceable(word, place.at, "a dynamic reference is not supported")
            if "$ref" in raw:
                raise Unenforceable(word, place.at, "it is not supported beside `$ref`")
        return {"$ref": document.resolve(place, raw[word])}

    return read


def read_type(_document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
    types = raw["type"] if isinstance(raw["type"], list) else [raw["type"]]
    return {"type": tuple(types)}


def read_enum(document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
    is_narrowed = "const" in raw and is_known("const", document.draft)
    return read_const(document, place, raw) if is_narrowed else {"enum": raw["enum"]}


def read_const(_document: Document, _place: Place, raw: dict[str, Any]) -> dict[str, Any]:
    """`const` is read as an `enum` of one value; both together are intersected."""
    chosen = raw["const"]
    allowed = raw.get("enum", [chosen])
    return {"enum": [chosen] if any(same_value(chosen, value) for value in allowed) else []}


def same_value(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    return bool(a == b)


def json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def read_items(document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
    """In older drafts a list of `items` means `prefixItems`, and `additionalItems` means `items`."""
    items = raw["items"]
    if not isinstance(items, list):
        return {"items": document.inside(place, "/items", items)}
    read: dict[str, Any] = {"prefixItems": nodes(document, place, "items", items)}
    if "additionalItems" in raw:
        read["items"] = document.inside(place, "/additionalItems", raw["additionalItems"])
    return read


def read_exclusive(word: str, inclusive: str) -> Reader:
    """Draft 4 marks a bound as exclusive with a boolean."""

    def read(_document: Document, _place: Place, raw: dict[str, Any]) -> dict[str, Any]:
        bound = raw[word]
        if isinstance(bound, bool):
            return {word: raw[inclusive]} if bound and inclusive in raw else {}
        return {word: bound}

    return read


def read_condition(document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
    then, otherwise = (
        document.inside(place, f"/{word}", raw[word]) if word in raw else None for word in ("then", "else")
    )
    if then is None and otherwise is None:
        return {}
    return {"if": Condition(document.inside(place, "/if", raw["if"]), then, otherwise)}


def read_contains(document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
    counts = raw if document.draft >= Draft.Y2019 else {}
    item = document.inside(place, "/contains", raw["contains"])
    return {"contains": Contains(item, int(counts.get("minContains", 1)), counts.get("maxContains"))}


def read_dependencies(document: Document, place: Place, raw: dict[str, Any]) -> dict[str, Any]:
    """`dependencies` is split into `dependentRequired` and `dependentSchemas`."""
    names = {key: value for key, value in raw["dependencies"].items() if isinstance(value, list)}
    schemas = {
        key: document.inside(place, f"/dependencies/{escape(key)}", value)
        for key, value in raw["dependencies"].items()
        if not isinstance(value, list)
    }
    return {"dependentRequired": names, "dependentSchemas": schemas}


def read_content(word: str) -> Reader:
    """Drafts 6 and 7 check encoded strings; in newer drafts the keyword is an annotation."""
    return lambda document, _place, raw: {word: raw[word]} if Draft.SIX <= document.draft <= Draft.SEVEN else {}


# Every keyword that a validator checks. All others are annotations and are dropped.
READERS: dict[str, Reader] = {
    **{word: plain(word) for word in ("minimum", "maximum", "multipleOf", "pattern", "format", "required")},
    **{word: plain(word) for word in ("uniqueItems", "dependentRequired")},
    **{word: counted(word) for word in ("minLength", "maxLength", "minItems", "maxItems")},
    **{word: counted(word) for word in ("minProperties", "maxProperties")},
    **{word: one(word) for word in ("not", "additionalProperties", "propertyNames")},
    **{word: one(word) for word in ("unevaluatedItems", "unevaluatedProperties")},
    **{word: listed(word) for word in ("allOf", "anyOf", "oneOf", "prefixItems")},
    **{word: mapped(word) for word in ("properties", "patternProperties", "dependentSchemas")},
    "$ref": read_reference,
    "$recursiveRef": read_recursive_reference("$recursiveRef"),
    "$dynamicRef": read_recursive_reference("$dynamicRef"),
    "type": read_type,
    "enum": read_enum,
    "const": read_const,
    "items": read_items,
    "exclusiveMinimum": read_exclusive("exclusiveMinimum", "minimum"),
    "exclusiveMaximum": read_exclusive("exclusiveMaximum", "maximum"),
    "if": read_condition,
    "contains": read_contains,
    "dependencies": read_dependencies,
    "contentEncoding": read_content("contentEncoding"),
    "contentMediaType": read_content("contentMediaType"),
}
