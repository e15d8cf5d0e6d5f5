"""Removes alternatives that contradict other schemas at the same place.

This makes the grammar smaller and shows early that no alternative is left. Only proved contradictions count.
"""

from __future__ import annotations

from typing import Any

from quicksilver.constrain.compile.rewrite.algebra import any_of
from quicksilver.constrain.compile.rewrite.disjoint import possible_types, property_schemas, refuses
from quicksilver.constrain.compile.rewrite.node import Document, Node, conjuncts
from quicksilver.constrain.compile.rewrite.vocabulary import Json


def prune(document: Document, schema: Json, members: list[Node]) -> Json:
    """`schema` without the alternatives that contradict `members`."""
    if isinstance(schema, bool):
        return schema
    ways = schema["anyOf"] if list(schema) == ["anyOf"] else [schema]
    return any_of([way for way in ways if not clashes(document, way, members)])


def clashes(document: Document, way: Json, members: list[Node]) -> bool:
    """Whether it is proved that no value matches `way` and all `members`."""
    if isinstance(way, bool):
        return not way
    if "type" in way and not types_of(way) & possible_types(members):
        return True
    if "enum" in way and all(any(refuses(member, value) for member in members) for value in way["enum"]):
        return True
    if any(clashes(document, part, members) for part in way.get("allOf", ())):
        return True
    if "anyOf" in way and all(clashes(document, part, members) for part in way["anyOf"]):
        return True
    return possible_types(members) <= {"object"} and properties_clash(document, way, members)


def types_of(way: dict[str, Any]) -> set[str]:
    stated = way["type"]
    return {"number" if t == "integer" else t for t in ([stated] if isinstance(stated, str) else stated)}


def properties_clash(document: Document, way: dict[str, Any], members: list[Node]) -> bool:
    demanded = {name for member in members for name in member.get("required") or ()} | set(way.get("required", ()))
    for name in demanded:
        there = [found for node in property_schemas(members, name) for found in conjuncts(document, node)]
        if any(node.never for node in there):
            return True
        if clashes(document, way.get("properties", {}).get(name, True), there):
            return True
    return False
