"""The questions of every client test. Token limits are low, because a small CPU generates about fifteen tokens per
second."""

from __future__ import annotations

import json
from typing import Any

import pydantic

QUESTION = "What is the capital of France?"
CITY = "Paris"
STORY = "Write a very long story about a dragon, with many chapters."
# Longer than any test waits: these streams are closed by their readers. Greedy decoding uses all tokens; a sampled
# story could end before its reader leaves.
STORY_TOKENS = 4000
LIMIT = 80

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
DESCRIBE = "Describe a person called Ada, aged 36, as JSON."
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASK_WEATHER = "What is the weather in Paris?"


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0)


def user(text: str = QUESTION) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def check_call(name: str | None, arguments: str | None) -> None:
    """A call of the tool above, with arguments that its schema allows."""
    assert name == "weather"
    given = json.loads(arguments or "")
    assert set(given) == {"city"}
    assert isinstance(given["city"], str)


def check_person(text: str | None) -> None:
    Person.model_validate_json(text or "")
