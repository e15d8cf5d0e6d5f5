"""Soundness over random schemas: what the grammar admits or writes is an instance."""

from __future__ import annotations

import random
from typing import Any

import jsonschema_rs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quicksilver.constrain.validate import validate_output
from quicksilver.errors import InvalidGrammar
from tests.constrain.schemas import instances, schemas, unique_lists
from tests.constrain.walks import automaton, chance_text, compact, finishes, schema_spec

ORDINARY = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check_instances(schema: Any, values: list[Any]) -> None:
    """The grammar admits no value that the validator refuses."""
    try:
        matcher = automaton(schema_spec(schema))
    except InvalidGrammar:
        return
    for value in values:
        if finishes(matcher.deep_copy(), compact(value)):
            assert jsonschema_rs.is_valid(schema, value)


def check_texts(schema: Any, seed: int) -> None:
    """Random texts of the grammar are valid, and there is always a byte that continues them (`chance_text`)."""
    try:
        matcher = automaton(schema_spec(schema))
    except InvalidGrammar:
        return
    rng = random.Random(seed)
    for _ in range(3):
        text = chance_text(matcher.deep_copy(), rng, 120)
        assert text is None or validate_output(schema, text) is None


@ORDINARY
@given(schemas(), st.lists(instances(), min_size=1, max_size=6))
def test_no_instance_is_admitted_that_the_validator_refuses(schema: Any, values: list[Any]) -> None:
    check_instances(schema, values)


@ORDINARY
@given(schemas(), st.integers(0, 2**32))
def test_random_output_is_valid(schema: Any, seed: int) -> None:
    check_texts(schema, seed)


@ORDINARY
@given(unique_lists(), st.lists(st.lists(st.sampled_from(["", "a", "ab", "b", "ba"]), max_size=5), max_size=6))
def test_no_list_with_a_repeated_string_is_admitted(schema: Any, values: list[Any]) -> None:
    check_instances(schema, values)


@ORDINARY
@given(unique_lists(), st.integers(0, 2**32))
def test_a_random_list_of_unique_strings_is_valid_and_never_stuck(schema: Any, seed: int) -> None:
    check_texts(schema, seed)
