"""Rule-based training rows with JSON answers: extraction of records from sentences, and instances of a schema.

The answer is compact JSON with keys in the order of the schema, and nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quicksilver.text.chat import Message
from quicksilver.training.rows import ChatRow
from quicksilver.training.synthesis.banks import (
    AMOUNTS,
    CATEGORIES,
    CITIES,
    COMPANIES,
    DATES,
    PEOPLE,
    PRODUCTS,
    TIMES,
    words,
)
from quicksilver.training.synthesis.values import string_value

# Name, schema, function that draws a value, and the sentence that states it.
Field = tuple[str, dict[str, Any], Callable[[random.Random], Any], str]


def _pick(bank: tuple[str, ...]) -> Callable[[random.Random], Any]:
    return lambda rng: rng.choice(bank)


_STRING, _INTEGER, _NUMBER, _BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
_TAGS = {"type": "array", "items": {"type": "string"}}

RECORDS: dict[str, tuple[Field, ...]] = {
    "person": (
        ("name", _STRING, _pick(PEOPLE), "The name is {}."),
        ("age", _INTEGER, lambda r: r.randint(1, 99), "The age is {} years."),
        ("city", _STRING, _pick(CITIES), "Home is {}."),
        ("employer", _STRING, _pick(COMPANIES), "Work is at {}."),
        ("hobbies", _TAGS, lambda r: r.sample(CATEGORIES["sports"], r.randint(1, 3)), "Favourite hobbies: {}."),
        ("married", _BOOLEAN, lambda r: r.random() < 0.5, "Married: {}."),
    ),
    "order": (
        ("product", _STRING, _pick(PRODUCTS), "The customer ordered {}."),
        ("quantity", _INTEGER, lambda r: r.randint(1, 40), "The quantity is {}."),
        ("price", _NUMBER, lambda r: r.choice(AMOUNTS), "The price is {} dollars."),
        ("date", _STRING, _pick(DATES), "It was placed on {}."),
        ("customer", _STRING, _pick(PEOPLE), "It is for {}."),
        ("paid", _BOOLEAN, lambda r: r.random() < 0.5, "Paid already: {}."),
    ),
    "event": (
        (
            "title",
            _STRING,
            _pick(("team meeting", "concert", "birthday party", "workshop", "book club")),
            "It is a {}.",
        ),
        ("date", _STRING, _pick(DATES), "It takes place on {}."),
        ("time", _STRING, _pick(TIMES), "It begins at {}."),
        ("location", _STRING, _pick(CITIES), "The place is {}."),
        ("attendees", _TAGS, lambda r: r.sample(PEOPLE, r.randint(1, 4)), "Those coming: {}."),
        ("public", _BOOLEAN, lambda r: r.random() < 0.5, "Open to the public: {}."),
    ),
    "city": (
        ("name", _STRING, _pick(CITIES), "The city is called {}."),
        ("population", _INTEGER, lambda r: r.randint(10, 9000) * 1000, "It has {} inhabitants."),
        ("coastal", _BOOLEAN, lambda r: r.random() < 0.5, "On the coast: {}."),
        ("languages", _TAGS, lambda r: r.sample(CATEGORIES["languages"], r.randint(1, 3)), "Spoken there: {}."),
        ("mayor", _STRING, _pick(PEOPLE), "The mayor is {}."),
    ),
}

ASKS = (
    "Extract the data as JSON that follows this schema:\n{schema}\n\nText: {text}",
    "{text}\n\nReturn a JSON object for this text. Schema: {schema}",
    "Read the text and answer with JSON only.\nSchema:\n{schema}\n\n{text}",
    "Turn this into JSON matching the schema {schema}\n\n{text}",
)
INSTANCE_ASKS = (
    "Write a JSON document that is valid under this schema:\n{schema}",
    "Generate an example that matches this JSON schema. Answer with JSON only.\n{schema}",
    "Give me one valid JSON instance of the schema below.\n\n{schema}",
)
SYSTEM_ASK = "Answer with JSON that follows this schema:\n{schema}"


def extraction_rows(count: int, rng: random.Random) -> Iterator[ChatRow]:
    """Records described in sentences, to be extracted under a schema given in the prompt."""
    for _ in range(count):
        kind = rng.choice(sorted(RECORDS))
        fields = rng.sample(RECORDS[kind], rng.randint(2, len(RECORDS[kind])))
        values = {name: draw(rng) for name, _, draw, _ in fields}
        told = rng.sample(fields, len(fields))
        text = " ".join(phrase.format(_spoken(values[name])) for name, _, _, phrase in told)
        schema = _schema({name: shape for name, shape, _, _ in fields}, kind, rng)
        yield _json_row(schema, text, values, rng)


def _schema(properties: Mapping[str, Any], title: str, rng: random.Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties), "required": list(properties)}
    if rng.random() < 0.4:
        schema["additionalProperties"] = False
    return {"title": title, **schema} if rng.random() < 0.3 else schema


def _json_row(schema: Any, text: str, answer: Any, rng: random.Random) -> ChatRow:
    written = json.dumps(schema, indent=rng.choice((None, None, 2)))
    reply = Message("assistant", json.dumps(answer, ensure_ascii=False))
    if rng.random() < 0.25:
        system = Message("system", SYSTEM_ASK.format(schema=written))
        return ChatRow((system, Message("user", text), reply), domain="json")
    asked = rng.choice(ASKS).replace("{schema}", written).replace("{text}", text)
    return ChatRow((Message("user", asked), reply), domain="json")


def _spoken(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def schema_row(schema: Any, instance: Any, rng: random.Random) -> ChatRow:
    """A request for an instance of a schema, with the instance as answer."""
    written = json.dumps(schema, ensure_ascii=False)
    asked = rng.choice(INSTANCE_ASKS).replace("{schema}", written)
    reply = Message("assistant", json.dumps(instance, ensure_ascii=False))
    return ChatRow((Message("user", asked), reply), domain="json")


_FIELD_NAMES = words(
    """
    id, name, title, description, status, type, version, url, email, phone, city, country, address, created_at, date,
    price, amount, quantity, total, count, size, weight, height, width, color, currency, tags, labels, items, options,
    settings, config, metadata, owner, author, members, parent, children, path, file_name, language, message, summary,
    enabled, is_active, is_public, verified, priority, score, rating, start_time, end_time, duration, location, source,
    target, category, product, brand, company, user, account, token, region, zone, port, host, timeout, retries, limit
    """
)
_KINDS: tuple[dict[str, Any], ...] = (
    *({"type": kind} for kind in ("string", "string", "string", "integer", "number", "boolean")),
    {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "string", "format": "date"},
    {"enum": ["low", "medium", "high"]},
    {"enum": ["open", "closed", "pending"]},
)


def made_schema_rows(count: int, rng: random.Random) -> Iterator[ChatRow]:
    """Requests for an instance of a random schema, nested up to three levels, with fields in any order."""
    for _ in range(count):
        schema = _made_schema(rng, rng.randint(1, 3))
        yield schema_row(schema, build_instance(schema, rng), rng)


def _made_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_FIELD_NAMES, rng.randint(2, 6))
    properties = {name: _made_field(rng, depth) for name in names}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [name for name in names if rng.random() < 0.7]
    return schema | ({"required": required} if required else {})


def _made_field(rng: random.Random, depth: int) -> dict[str, Any]:
    draw = rng.random()
    if depth > 1 and draw < 0.25:
        return _made_schema(rng, depth - 1)
    if depth > 1 and draw < 0.4:
        return {"type": "array", "items": _made_schema(rng, depth - 1)}
    return dict(rng.choice(_KINDS))


# Nesting levels of a schema. An array of objects counts as two.
_DEEPEST = 7


class NoInstance(Exception):
    """The schema uses a keyword that the small builder below does not support."""


def build_instance(schema: Any, rng: random.Random, depth: int = 0, root: Any = None, name: str = "") -> Any:
    """Build a small value that should satisfy `schema`; the caller validates it. Raises NoInstance for unsupported
    schemas."""
    root = schema if root is None else root
    if depth > _DEEPEST or schema is False:
        raise NoInstance
    if not isinstance(schema, dict):
        return string_value(name, {}, rng)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    if "$ref" in schema:
        return build_instance(_resolve(schema["$ref"], root), rng, depth + 1, root, name)
    for key in ("oneOf", "anyOf"):
        if schema.get(key):
            rest = {k: v for k, v in schema.items() if k != key}
            return build_instance({**rest, **schema[key][0]}, rng, depth + 1, root, name)
    if schema.get("allOf"):
        merged = _merged([{k: v for k, v in schema.items() if k != "allOf"}, *schema["allOf"]], root)
        return build_instance(merged, rng, depth + 1, root, name)
    return _typed(schema, rng, depth, root, name)


def _typed(schema: dict[str, Any], rng: random.Random, depth: int, root: Any, name: str) -> Any:
    kind = schema.get("type") or ("object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return _object(schema, rng, depth, root)
    if kind == "array":
        items = schema.get("items", {"type": "string"})
        items = items[0] if isinstance(items, list) and items else items
        count = max(int(schema.get("minItems", 0)), min(rng.randint(1, 3), int(schema.get("maxItems", 3))))
        found = [build_instance(items, rng, depth + 1, root, name) for _ in range(count)]
        # Items are distinct, because repeated items would teach endless repetition.
        is_plain = all(isinstance(item, (str, int)) for item in found) and "minItems" not in schema
        return list(dict.fromkeys(found)) if is_plain else found
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        low = low + 1 if isinstance(low, (int, float)) and not isinstance(low, bool) else 1
        high = schema.get("maximum", low + 50)
        return min(int(low) + rng.randint(0, 9), int(high))
    if kind == "boolean":
        return rng.random() < 0.5
    return None if kind == "null" else string_value(name, schema, rng)


def _object(schema: dict[str, Any], rng: random.Random, depth: int, root: Any) -> dict[str, Any]:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    wanted = [n for n in properties if n in required or rng.random() < (0.6 if depth == 0 else 0.4)]
    wanted += [name for name in required if name not in properties]
    return {name: build_instance(properties.get(name, {}), rng, depth + 1, root, name) for name in wanted[:12]}


def _resolve(reference: str, root: Any) -> Any:
    value = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if not part:
            continue
        if not isinstance(value, dict) or part not in value:
            raise NoInstance
        value = value[part]
    return value


def _merged(parts: list[Any], root: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        whole = _resolve(part["$ref"], root) if "$ref" in part else part
        properties = {**merged.get("properties", {}), **whole.get("properties", {})}
        required = [*merged.get("required", []), *whole.get("required", [])]
        merged = {**merged, **whole, "properties": properties, "required": required}
    return merged
