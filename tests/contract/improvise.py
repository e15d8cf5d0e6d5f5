"""Generates an answer that a grammar admits: the smallest instance of its schema, with values from the prompt.

It reads the grammar as the engine receives it, so the schema of the client has passed the whole pipeline.
"""

from __future__ import annotations

import json
import re
from typing import Any

from quicksilver.core import ConstraintSpec

WORDS = {"name": "Ada", "city": "Paris", "location": "Paris", "username": "@ada", "email": "ada@example.com"}
AGE = 36
# References followed before a recursive schema is terminated.
DEEPEST = 3


def improvise(constraint: ConstraintSpec, prompt: str) -> str | None:
    """Return text that the grammar admits, or None if the request needs neither a schema nor a tool."""
    grammars = json.loads(constraint.grammar)["grammars"]
    lark = grammars[0].get("lark_grammar", "")
    calls = re.findall(r'\{\\"name\\": \\"([\w-]+)\\", \\"arguments\\": " @(\w+)', lark)
    schemas = {part.get("name", "answer"): part["json_schema"] for part in grammars if "json_schema" in part}
    question = prompt.rsplit("<|im_start|>user", 1)[-1]
    if calls:
        is_answering = "tool" in re.findall(r"<\|im_start\|>(\w+)(?=[^\n]*\n)", prompt)[-2:]
        is_required = "TEXT |" not in lark and "@answer" not in lark
        meant = [call for call in calls if speaks_of(call[0], question)] or calls[:1] * is_required
        if is_required or (meant and not is_answering):
            return write_calls(meant[:2], schemas, question)
    return json.dumps(instance(schemas["answer"], schemas["answer"], question)) if "answer" in schemas else None


def write_calls(calls: list[tuple[str, str]], schemas: dict[str, Any], question: str) -> str:
    written = [{"name": name, "arguments": instance(schemas[part], schemas[part], question)} for name, part in calls]
    return "".join(f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>" for call in written)


def speaks_of(tool: str, question: str) -> bool:
    words = [word for word in re.split(r"[_-]|(?<=[a-z])(?=[A-Z])", tool.lower()) if len(word) > 3]
    return tool in question or any(word in question.lower() for word in words)


def instance(schema: Any, root: Any, question: str, name: str = "", depth: int = 0) -> Any:
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema:
        return instance(resolve(schema["$ref"], root), root, question, name, depth + 1)
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    for word in ("anyOf", "allOf", "oneOf"):
        if word in schema:
            # The last branch of a recursive schema terminates it.
            return instance(schema[word][-1 if depth > DEEPEST else 0], root, question, name, depth)
    kind = schema.get("type", "object")
    return of_kind(kind if isinstance(kind, str) else kind[0], schema, (root, depth), question, name)


def resolve(reference: str, root: Any) -> Any:
    found = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found[step] if step else found
    return found


def of_kind(kind: str, schema: dict[str, Any], place: tuple[Any, int], question: str, name: str) -> Any:
    root, depth = place
    quoted = re.findall(r"'([^']+)'", question)
    if kind == "object":
        # A bare object gets the keys quoted in the question.
        properties = schema.get("properties") or {key: {"type": "string"} for key in quoted}
        wanted = schema.get("required", properties)
        return {key: instance(properties[key], root, question, key, depth) for key in properties if key in wanted}
    if kind == "array":
        count = max(0 if depth > DEEPEST else 1, schema.get("minItems", 0))
        return [instance(schema.get("items", {}), root, question, name, depth) for _ in range(count)]
    if kind in ("integer", "number"):
        numbers = re.findall(r"\d+", question)
        return min(int(numbers[-1]) if numbers else AGE, schema.get("maximum", AGE**9))
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    return WORDS.get(name) or (quoted or ["some text"])[0]
