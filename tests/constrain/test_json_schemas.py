"""940 real schemas with valid and invalid instances: nothing invalid is admitted or written."""

from __future__ import annotations

import json
import lzma
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from quicksilver.constrain.source import Policy
from quicksilver.constrain.validate import validate_output
from quicksilver.errors import InvalidGrammar
from tests.constrain.walks import automaton, chance_text, compact, finishes, schema_spec
from tests.support.shared_data import shared

LEAST_COMPILED = 0.92
KEYWORDS = ("not", "oneOf", "uniqueItems", "pattern", "$ref", "anyOf", "allOf", "required", "minProperties", "type")
KEYWORDS += ("propertyNames", "patternProperties", "if", "enum", "multipleOf", "format", "contentMediaType")


@dataclass
class Tally:
    """What became of all schemas."""

    num_schemas: int = 0
    num_compiled: int = 0
    num_written: int = 0
    nameless: list[str] = field(default_factory=list)
    wrongly_taken: list[str] = field(default_factory=list)
    wrongly_written: list[str] = field(default_factory=list)


def judge(tally: Tally, entry: dict[str, Any], rng: random.Random) -> None:
    tally.num_schemas += 1
    schema, name = entry["schema"], entry["name"]
    try:
        spec = schema_spec(schema, Policy.GUARANTEED)
    except InvalidGrammar as refusal:
        if not any(f"`{keyword}`" in refusal.message for keyword in KEYWORDS):
            tally.nameless.append(f"{name}: {refusal.message}")
        return
    tally.num_compiled += 1
    matcher = automaton(spec)
    for test in entry["tests"]:
        if not test["valid"] and finishes(matcher.deep_copy(), compact(test["data"])):
            tally.wrongly_taken.append(f"{name}: {compact(test['data'])[:200]}")
    text = chance_text(matcher.deep_copy(), rng, 200)
    if text is not None:
        tally.num_written += 1
        if (reason := validate_output(schema, text)) is not None:
            tally.wrongly_written.append(f"{name}: {reason}")


@pytest.fixture(scope="module")
def tally() -> Tally:
    tally, rng = Tally(), random.Random(0)
    with lzma.open(shared("json", "schemas.jsonl.xz"), "rt") as lines:
        for line in lines:
            judge(tally, json.loads(line), rng)
    return tally


def test_enough_schemas_compile(tally: Tally) -> None:
    assert tally.num_schemas == 940
    assert tally.num_compiled >= LEAST_COMPILED * tally.num_schemas


def test_every_refusal_names_a_keyword(tally: Tally) -> None:
    assert tally.nameless == []


def test_no_invalid_instance_is_admitted(tally: Tally) -> None:
    assert tally.wrongly_taken == []


def test_random_output_is_valid(tally: Tally) -> None:
    assert tally.num_written > tally.num_compiled // 2
    assert tally.wrongly_written == []
