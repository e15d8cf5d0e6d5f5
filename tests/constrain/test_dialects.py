"""A few schemas and tool calls on every dialect. `python -m benchmarks.dialect_json` runs 200 of them on each."""

from __future__ import annotations

import random

import pytest

from benchmarks.dialect_json import check_schema, check_tools, faults, schema_of, tools_of
from tests.support.dialects import DISTINCT

NUM_SCHEMAS, NUM_TOOLS = 8, 3


@pytest.mark.parametrize("name", DISTINCT)
def test_every_answer_of_a_random_network_matches_its_schema(name: str) -> None:
    first = random.Random(name).randrange(200 - NUM_SCHEMAS)
    assert list(faults(name, "schema", range(first, first + NUM_SCHEMAS))) == []


@pytest.mark.parametrize("name", DISTINCT)
def test_every_call_of_a_random_network_matches_its_tool(name: str) -> None:
    assert list(faults(name, "tools", range(NUM_TOOLS))) == []


def test_the_schemas_differ() -> None:
    assert len({str(schema_of(i)) for i in range(200)}) > 150
    assert len({str(tools_of(i)) for i in range(50)}) == 50


def test_an_invalid_answer_is_reported() -> None:
    assert check_schema(0, b"{") is not None
    assert check_tools(0, b"{}") is not None
