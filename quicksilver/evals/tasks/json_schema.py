"""JSON without a grammar: the prompt shows a schema and asks for one document. 500 held-out schemas.

`parses` requires the whole answer to be JSON. `valid` also requires it to satisfy the schema, and is present only if
the validator is installed. Answers from a machine without it can be scored later
(`benchmarks/eval_gpu.py --rescore`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicksilver.evals.data import pack_records
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Generate, Metrics, Task

_LONGEST_SCHEMA = 4000


@dataclass(frozen=True, slots=True)
class SchemaItem:
    schema: Any


def load(data: Path) -> Iterable[SchemaItem]:
    """Schemas short enough to leave room for an answer in a small context."""
    records = pack_records(data, "json_schema_holdout")
    return [SchemaItem(record["schema"]) for record in records if len(json.dumps(record["schema"])) <= _LONGEST_SCHEMA]


def ask(item: SchemaItem, writer: PromptBuilder) -> Generate:
    schema = json.dumps(item.schema)
    prompt = writer.chat(
        f"Here is a JSON schema:\n{schema}\n\nWrite one JSON document that it accepts. Output JSON only."
    )
    return Generate(prompt.ids, 384, prompt.stop, prompt.stop_ids)


def score(item: SchemaItem, answer: Answer) -> Metrics:
    try:
        instance = json.loads(answer.text)
    except (ValueError, RecursionError):
        return {"parses": 0.0} if follows(True, None) is None else {"parses": 0.0, "valid": 0.0}
    is_valid = follows(item.schema, instance)
    return {"parses": 1.0} if is_valid is None else {"parses": 1.0, "valid": float(is_valid)}


def follows(schema: Any, instance: Any) -> bool | None:
    """Whether the instance satisfies the schema, or None without a validator. Remote references are not fetched."""
    try:
        import jsonschema_rs
    except ImportError:
        return None
    try:
        return bool(jsonschema_rs.validator_for(schema, offline=True).is_valid(instance))
    except (ValueError, jsonschema_rs.ValidationError):
        return None


TASKS = (Task("json_schema", "json", ("parses", "valid"), load, ask, score),)
