"""Joining schemas that the rewrite has written: `allOf` and `anyOf` with the trivial cases taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quicksilver.constrain.compile.rewrite.vocabulary import Json


def all_of(parts: Sequence[Json]) -> Json:
    """All parts at once. Neighbours that share no keyword become one schema."""
    if any(part is False for part in parts):
        return False
    kept: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, bool):
            continue
        if kept and can_merge(kept[-1], part):
            kept[-1] = {**kept[-1], **part}
        else:
            kept.append(part)
    if not kept:
        return True
    return kept[0] if len(kept) == 1 else {"allOf": kept}


def can_merge(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether the keywords of two schemas can stand side by side without changing what either says."""
    return not a.keys() & b.keys() and not (shapes(a) and shapes(b))


def shapes(schema: dict[str, Any]) -> bool:
    """Whether `additionalProperties` or `items` would read its neighbours' keywords."""
    return any(
        word in schema for word in ("properties", "patternProperties", "additionalProperties", "prefixItems", "items")
    )


def any_of(parts: Sequence[Json]) -> Json:
    """At least one part."""
    if any(part is True for part in parts):
        return True
    kept = [part for part in parts if isinstance(part, dict)]
    if not kept:
        return False
    if len(kept) == 1:
        return kept[0]
    flat: list[Json] = []
    for part in kept:
        flat.extend(part["anyOf"] if list(part) == ["anyOf"] else [part])
    return {"anyOf": flat}
