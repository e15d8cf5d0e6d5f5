"""Finds definitions that no finite value satisfies, such as an object that requires another object of its own kind.

A grammar of such a definition has a beginning and no end. Works on rewritten schemas; a keyword that is not considered
here counts as satisfiable.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from quicksilver.constrain.compile.rewrite.vocabulary import Json

DEFINITIONS = "#/$defs/"


def endless(definitions: Mapping[str, Json]) -> set[str]:
    """The names of the definitions without a finite value: all that a least fixed point does not reach."""
    finite: set[str] = set()
    while found := {n for n, schema in definitions.items() if n not in finite and is_finite(schema, finite)}:
        finite |= found
    return definitions.keys() - finite


def without(value: Any, names: Set[str]) -> Any:
    """A schema, or a value in one, with false instead of each reference to one of the named definitions."""
    if isinstance(value, list):
        return [without(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.removeprefix(DEFINITIONS) in names:
        return False
    # Instances are no schemas, although they may look like one.
    return {word: item if word in ("enum", "const") else without(item, names) for word, item in value.items()}


def is_finite(schema: Json, finite: Set[str]) -> bool:
    """Whether some finite value satisfies the schema, given the names of definitions that have one."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and schema["$ref"].removeprefix(DEFINITIONS) not in finite:
        return False
    if not all(is_finite(part, finite) for part in schema.get("allOf", ())):
        return False
    if any(word in schema and not _has_finite(schema[word], finite) for word in ("anyOf", "oneOf")):
        return False
    types = schema.get("type", ())
    types = {types} if isinstance(types, str) else set(types)
    return not types or any(_is_finite_as(kind, schema, finite) for kind in types)


def _has_finite(ways: list[Json], finite: Set[str]) -> bool:
    return any(is_finite(way, finite) for way in ways)


def _is_finite_as(kind: str, schema: dict[str, Any], finite: Set[str]) -> bool:
    if kind == "object":
        properties = schema.get("properties", {})
        return all(is_finite(properties.get(name, True), finite) for name in schema.get("required", ()))
    if kind == "array":
        first, count = schema.get("prefixItems", []), schema.get("minItems", 0)
        rest = [schema.get("items", True)] if count > len(first) else []
        return all(is_finite(item, finite) for item in [*first[:count], *rest])
    return True
