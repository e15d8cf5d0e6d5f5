"""The keywords of JSON Schema: which ones hold schemas, and in which drafts they exist."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

# A schema in JSON form.
Json = dict[str, Any] | bool

# The disjoint JSON types; `integer` is a subset of `number`.
TYPES = ("null", "boolean", "number", "string", "array", "object")


class Draft(IntEnum):
    """Supported drafts, oldest first."""

    FOUR = 4
    SIX = 6
    SEVEN = 7
    Y2019 = 2019
    Y2020 = 2020


DRAFT_URIS = {
    "json-schema.org/draft-04/schema": Draft.FOUR,
    "json-schema.org/draft-06/schema": Draft.SIX,
    "json-schema.org/draft-07/schema": Draft.SEVEN,
    "json-schema.org/draft/2019-09/schema": Draft.Y2019,
    "json-schema.org/draft/2020-12/schema": Draft.Y2020,
}

# Keywords newer than draft 4; validators of older drafts ignore them.
SINCE = {
    "const": Draft.SIX,
    "contains": Draft.SIX,
    "propertyNames": Draft.SIX,
    "if": Draft.SEVEN,
    "then": Draft.SEVEN,
    "else": Draft.SEVEN,
    "dependentRequired": Draft.Y2019,
    "dependentSchemas": Draft.Y2019,
    "minContains": Draft.Y2019,
    "maxContains": Draft.Y2019,
    "unevaluatedItems": Draft.Y2019,
    "unevaluatedProperties": Draft.Y2019,
    "$recursiveRef": Draft.Y2019,
    "prefixItems": Draft.Y2020,
    "$dynamicRef": Draft.Y2020,
}

# Keywords that newer drafts removed.
UNTIL = {"dependencies": Draft.SEVEN, "$recursiveRef": Draft.Y2019}

ONE_SCHEMA = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "items",
        "additionalItems",
        "additionalProperties",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
SCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
SCHEMA_MAPS = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"))


def is_known(word: str, draft: Draft) -> bool:
    """Whether every validator of `draft` checks `word`."""
    return SINCE.get(word, Draft.FOUR) <= draft <= UNTIL.get(word, Draft.Y2020)


def declared_draft(schema: Any) -> Draft | None:
    """The draft that `$schema` names; None if it names no supported one."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(uri, str):
        return None
    return DRAFT_URIS.get(uri.split("://", 1)[-1].rstrip("#"))


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside a raw schema, each with its pointer suffix."""
    if not isinstance(schema, dict):
        return
    for word, value in schema.items():
        if word in SCHEMA_MAPS and isinstance(value, dict):
            yield from ((f"/{word}/{escape(name)}", sub) for name, sub in value.items())
        elif word in SCHEMA_LISTS and isinstance(value, list):
            yield from ((f"/{word}/{i}", sub) for i, sub in enumerate(value))
        elif word in ONE_SCHEMA:
            yield f"/{word}", value


def escape(segment: str) -> str:
    """One segment of a JSON pointer."""
    return segment.replace("~", "~0").replace("/", "~1")
