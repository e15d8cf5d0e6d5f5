"""`allOf` and `anyOf` of rewritten schemas, with trivial cases simplified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quicksilver.constrain.compile.rewrite.vocabulary import Json


def all_of(parts: Sequence[Json]) -> Json:
    """The conjunction of the parts. Adjacent parts without a common keyword become one schema."""
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
    """Whether the keywords of two schemas can be put into one schema without changing the meaning of either."""
    return not a.keys() & b.keys() and not (shapes(a) and shapes(b))


def shapes(schema: dict[str, Any]) -> bool:
    """Whether the schema has keywords that depend on others, as `additionalProperties` depends on `properties`."""
    return any(
        word in schema for word in ("properties", "patternProperties", "additionalProperties", "prefixItems", "items")
    )


def any_of(parts: Sequence[Json]) -> Json:
    """The union of the parts."""
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
