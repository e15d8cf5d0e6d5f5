"""Size limits of schemas, patterns and grammars. Applied first and without recursion.

The message of a refusal names what was counted.
"""

from __future__ import annotations

import json
from typing import Any

from quicksilver.constrain.compile.rewrite.refusal import too_big
from quicksilver.constrain.compile.rewrite.vocabulary import subschemas
from quicksilver.errors import InvalidGrammar

MAX_SCHEMA_BYTES = 256 * 1024
# Levels of nested schemas.
MAX_DEPTH = 32
# Levels of nested JSON, so that a value inside `enum` or `default` cannot exhaust the stack.
MAX_NESTING = 256
MAX_PROPERTIES = 1_000
MAX_ENUM_VALUES = 5_000
MAX_REGEX_CHARS = 1_024
MAX_GRAMMAR_BYTES = 256 * 1024
MAX_CHOICES = 5_000


def limit_schema_size(schema: Any) -> None:
    """Raises InvalidGrammar if `schema`, a parsed JSON value, exceeds a limit."""
    limit_nesting(schema)
    limit_bytes(schema)
    num_properties = num_values = 0
    pending = [(schema, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise too_big("levels of nested schemas", MAX_DEPTH, depth)
        if not isinstance(node, dict):
            continue
        num_properties += count(node.get("properties"))
        num_values += count(node.get("enum"))
        limit_regexes(node)
        pending.extend((sub, depth + 1) for _, sub in subschemas(node))
    if num_properties > MAX_PROPERTIES:
        raise too_big("`properties`", MAX_PROPERTIES, num_properties)
    if num_values > MAX_ENUM_VALUES:
        raise too_big("`enum` values", MAX_ENUM_VALUES, num_values)


def limit_nesting(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise too_big("levels of nested JSON", MAX_NESTING, depth)
        level = [inner for outer in level for inner in children(outer)]


def children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def limit_bytes(schema: Any) -> None:
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    except (TypeError, ValueError) as error:
        raise InvalidGrammar(f"The schema is not JSON: {error}.") from error
    if size > MAX_SCHEMA_BYTES:
        raise too_big("bytes in the schema", MAX_SCHEMA_BYTES, size)


def limit_regexes(node: dict[str, Any]) -> None:
    patterns = node.get("patternProperties")
    names = list(patterns) if isinstance(patterns, dict) else []
    for pattern in [node.get("pattern"), *names]:
        if isinstance(pattern, str):
            limit_regex_size(pattern)


def limit_regex_size(pattern: str) -> None:
    if len(pattern) > MAX_REGEX_CHARS:
        raise too_big("characters in a `pattern`", MAX_REGEX_CHARS, len(pattern))


def count(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else 0
