"""Requests for constrained generation: schemas of the data set, small closed schemas, tools, and decoders.

Case i depends only on i, so a run can be interrupted and resumed, and a failure can be reproduced.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Relative frequency of each decoder. A canvas costs many rows on a CPU, AR decoding one.
DECODERS = {"ar": 8, "verify": 4, "confidence": 2, "edit": 2}
TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.5)
LONGEST_SCHEMA = 2_000


def closed(**properties: Any) -> dict[str, Any]:
    """An object with just these properties, as OpenAI's strict mode asks for."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORD = {"type": "string", "maxLength": 16}
WHOLE = {"type": "integer", "minimum": 0, "maximum": 999}
CLOSED: dict[str, dict[str, Any]] = {
    "Name a person and an age.": closed(name=WORD, age=WHOLE),
    "Is this message polite? Please come in.": closed(polite={"type": "boolean"}, reason={**WORD, "maxLength": 40}),
    "Classify: my card was charged twice.": closed(
        topic={"enum": ["billing", "bug", "praise"]}, urgent={"type": "boolean"}
    ),
    "Plan a meeting with Ann and Bo on Friday.": closed(
        title=WORD,
        day={"enum": ["mon", "tue", "wed", "thu", "fri"]},
        people={"type": "array", "items": WORD, "minItems": 1, "maxItems": 3},
    ),
    "Where is Oslo?": closed(lat={"type": "number", "minimum": -90, "maximum": 90}, country=WORD),
    "Give two prime numbers.": {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2},
    "When was the moon landing?": closed(date={"type": "string", "format": "date"}, crewed={"type": "boolean"}),
    "Nothing or a word?": {"anyOf": [{"type": "null"}, WORD, closed(word=WORD)]},
    "A small tree.": {
        "$ref": "#/$defs/node",
        "$defs": {"node": closed(v=WHOLE, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})},
    },
    "A colour as hex.": closed(hex={"type": "string", "pattern": "^#[0-9a-f]{6}$"}),
}


def function(name: str, parameters: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


WEATHER = function("get_weather", closed(city=WORD, unit={"enum": ["celsius", "fahrenheit"]}), strict=True)
ALARM = function("set_alarm", closed(hour={**WHOLE, "maximum": 23}, daily={"type": "boolean"}), strict=True)
SEARCH = function("search", {"type": "object", "properties": {"query": WORD, "top": WHOLE}}, strict=False)
CLOCK = function("now", {"type": "object", "properties": {}, "additionalProperties": False}, strict=True)
TOOLSETS: dict[str, list[dict[str, Any]]] = {
    "What is the weather in Oslo and in Rome?": [WEATHER],
    "Wake me at 7 every day.": [ALARM, CLOCK],
    "Find news about Mars, then tell me the time.": [SEARCH, CLOCK],
    "Is it warm in Lima? If so, wake me at 6.": [WEATHER, ALARM, SEARCH],
}


@dataclass(frozen=True)
class Case:
    """One request. `schema` applies to the content, `arguments` to the calls. `needs_call` requires a call."""

    index: int
    kind: str
    decoder: str
    body: dict[str, Any]
    schema: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needs_call: bool = False


def make_case(index: int, schemas: Sequence[Any]) -> Case:
    rng = random.Random(index)
    decoder = rng.choices(list(DECODERS), list(DECODERS.values()))[0]
    body = {
        "model": "nano",
        "temperature": rng.choice(TEMPERATURES),
        "seed": index,
        "stream": rng.random() < 0.5,
        "decoder": {"name": decoder, "canvas_len": 1 if decoder == "ar" else rng.choice((4, 4, 8))},
    }
    make = (shared_case, closed_case, tools_case)[rng.choices(range(3), (2, 1, 1))[0]]
    return make(rng, Case(index, "", decoder, body), schemas)


def shared_case(rng: random.Random, case: Case, schemas: Sequence[Any]) -> Case:
    wanted = schemas[rng.randrange(len(schemas))]
    return schema_case("schema", case, "Write a short example as JSON.", wanted, rng.choice((32, 48, 64)))


def closed_case(rng: random.Random, case: Case, schemas: Sequence[Any]) -> Case:
    prompt = rng.choice(list(CLOSED))
    return schema_case("closed", case, prompt, CLOSED[prompt], rng.choice((24, 40, 56)))


def schema_case(kind: str, case: Case, prompt: str, schema: Any, max_tokens: int) -> Case:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    more = {"messages": ask(prompt), "response_format": wanted, "max_tokens": max_tokens}
    return Case(case.index, kind, case.decoder, {**case.body, **more}, schema=schema)


def tools_case(rng: random.Random, case: Case, schemas: Sequence[Any]) -> Case:
    prompt = rng.choice(list(TOOLSETS))
    tools = TOOLSETS[prompt]
    choice: Any = rng.choice(["auto", "required", "required", "named"])
    if choice == "named":
        choice = {"type": "function", "function": {"name": rng.choice(tools)["function"]["name"]}}
    more = {
        "messages": ask(prompt),
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": rng.random() < 0.5,
        "max_tokens": rng.choice((40, 64)),
    }
    arguments = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    return Case(
        case.index, "tools", case.decoder, {**case.body, **more}, arguments=arguments, needs_call=choice != "auto"
    )


def ask(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def is_small(schema: Any) -> bool:
    return len(json.dumps(schema)) <= LONGEST_SCHEMA
