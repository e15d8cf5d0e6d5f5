"""JSON without a grammar: the model is shown a schema and asked for one document. 500 schemas kept from training.

`parses` needs the whole answer to be JSON. `valid` also needs it to follow the schema, and is only there where the
validator is installed: answers from a bare machine are scored again elsewhere (`run.rescore`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicksilver.evals.data import pack_rows
from quicksilver.evals.task import Answer, Generate, Metrics, Task
from quicksilver.evals.writer import Writer

_LONGEST_SCHEMA = 4000


@dataclass(frozen=True, slots=True)
class Wish:
    schema: Any


def load(data: Path) -> Iterable[Wish]:
    """Schemas that leave room for an answer in a small context."""
    rows = pack_rows(data, "json_schema_holdout")
    return [Wish(row["schema"]) for row in rows if len(json.dumps(row["schema"])) <= _LONGEST_SCHEMA]


def ask(wish: Wish, writer: Writer) -> Generate:
    schema = json.dumps(wish.schema)
    prompt = writer.chat(
        f"Here is a JSON schema:\n{schema}\n\nWrite one JSON document that it accepts. Output JSON only."
    )
    return Generate(prompt.ids, 384, prompt.stop, prompt.stop_ids)


def score(wish: Wish, answer: Answer) -> Metrics:
    try:
        instance = json.loads(answer.text)
    except (ValueError, RecursionError):
        return {"parses": 0.0} if follows(True, None) is None else {"parses": 0.0, "valid": 0.0}
    is_valid = follows(wish.schema, instance)
    return {"parses": 1.0} if is_valid is None else {"parses": 1.0, "valid": float(is_valid)}


def follows(schema: Any, instance: Any) -> bool | None:
    """Whether the instance follows the schema; None where nothing here can tell. Remote references are not fetched."""
    try:
        import jsonschema_rs
    except ImportError:
        return None
    try:
        return bool(jsonschema_rs.validator_for(schema, offline=True).is_valid(instance))
    except (ValueError, jsonschema_rs.ValidationError):
        return None


TASKS = (Task("json_schema", "json", ("parses", "valid"), load, ask, score),)
