"""Resolves `$ref` within one document by pointer, anchor or `$id`. No reference is ever fetched.

A Place is a raw schema with its JSON pointer and base URI. A reference to another document is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

from quicksilver.constrain.compile.rewrite.refusal import Unenforceable
from quicksilver.constrain.compile.rewrite.vocabulary import Draft, subschemas


@dataclass(frozen=True, slots=True)
class Place:
    """A raw schema, its JSON pointer, and the base URI of its references."""

    at: str
    schema: Any
    base: str


class Registry:
    """The named places of a document. `places` maps the key of each resolved reference to its target."""

    def __init__(self, schema: Any, draft: Draft) -> None:
        self._id_word = "id" if draft == Draft.FOUR else "$id"
        self._ref_rules = draft <= Draft.SEVEN
        self._names: dict[str, Place] = {}
        self.places: dict[str, Place] = {}
        self.is_dynamic = False
        self.root = self._enter(Place("", schema, ""))
        self._names.setdefault("", self.root)
        self._index()

    def _index(self) -> None:
        pending = [self.root]
        while pending:
            place = pending.pop()
            if isinstance(place.schema, dict):
                self._name(place)
                pending.extend(self.inside(place, suffix, sub) for suffix, sub in subschemas(place.schema))

    def _name(self, place: Place) -> None:
        self._names.setdefault(place.base, place)
        for word in ("$anchor", "$dynamicAnchor"):
            anchor = place.schema.get(word)
            if isinstance(anchor, str):
                self._names[f"{place.base}#{anchor}"] = place
        self.is_dynamic |= "$dynamicAnchor" in place.schema or bool(place.schema.get("$recursiveAnchor"))

    def _enter(self, place: Place) -> Place:
        """The same place with the base URI of its own `$id`."""
        if not isinstance(place.schema, dict) or (self._ref_rules and "$ref" in place.schema):
            return place
        identity = place.schema.get(self._id_word)
        if not isinstance(identity, str):
            return place
        if identity.startswith("#"):
            self._names[place.base + identity] = place
            return place
        return Place(place.at, place.schema, join(place.base, identity).split("#", 1)[0])

    def inside(self, place: Place, suffix: str, schema: Any) -> Place:
        return self._enter(Place(place.at + suffix, schema, place.base))

    def resolve(self, place: Place, reference: Any) -> str:
        """The key of the target of `reference`, which is written at `place`."""
        if not isinstance(reference, str):
            raise Unenforceable("$ref", place.at, "a reference is a string")
        resource, _, fragment = join(place.base, reference).partition("#")
        target = self._names.get(resource)
        if target is None:
            raise Unenforceable(
                "$ref", place.at, f"'{reference[:200]}' refers to another document, which is not supported"
            )
        if fragment and not fragment.startswith("/"):
            target = self._names.get(f"{resource}#{fragment}")
        elif fragment:
            target = self._follow(target, unquote(fragment))
        if target is None:
            raise Unenforceable("$ref", place.at, f"'{reference[:200]}' has no target")
        self.places[target.at] = target
        return target.at

    def _follow(self, place: Place, pointer: str) -> Place | None:
        for segment in pointer.split("/")[1:]:
            schema = place.schema
            key = segment.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and key in schema:
                place = self.inside(place, f"/{segment}", schema[key])
            elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                place = self.inside(place, f"/{segment}", schema[int(key)])
            else:
                return None
        return place


def join(base: str, reference: str) -> str:
    """`urljoin`, also for bases such as `urn:`, which it does not support."""
    if reference.startswith("#") or not reference:
        return base + reference
    return urljoin(base, reference)
