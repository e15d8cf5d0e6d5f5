"""JSON rows: schemas, instances and extracted records."""

from __future__ import annotations

import json
import random

import jsonschema_rs

from quicksilver.training.synthesis.records import build_instance, extraction_rows, made_schema_rows


def test_made_schemas_have_valid_instances() -> None:
    for row in made_schema_rows(200, random.Random(3)):
        written = row.messages[0].content
        schema = json.loads(written[written.index("{") :])
        assert jsonschema_rs.is_valid(schema, json.loads(row.messages[1].content))


def test_extracted_records_validate_and_are_told_in_the_text() -> None:
    for row in extraction_rows(100, random.Random(2)):
        prompt = "\n".join(m.content for m in row.messages[:-1])
        for value in json.loads(row.messages[-1].content).values():
            if isinstance(value, (str, int)) and not isinstance(value, bool):
                assert str(value) in prompt


def test_instances_satisfy_plain_schemas() -> None:
    schema = {
        "type": "object",
        "required": ["id", "tags", "kind"],
        "properties": {
            "id": {"type": "integer", "minimum": 10, "maximum": 12},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 3},
            "kind": {"enum": ["a", "b"]},
            "when": {"type": "string", "format": "date"},
            "inner": {"$ref": "#/definitions/inner"},
        },
        "definitions": {"inner": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
    }
    for seed in range(30):
        assert jsonschema_rs.is_valid(schema, build_instance(schema, random.Random(seed)))
