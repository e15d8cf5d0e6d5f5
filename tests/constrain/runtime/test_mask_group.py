"""`LlguidanceMasks`: rows equal those of each constraint alone, and one failing automaton fails alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quicksilver.constrain.runtime.mask_group import LlguidanceMasks
from quicksilver.constrain.runtime.matcher import GrammarConstraint, Grammars
from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.errors import InvalidGrammar, InvalidRequest, RowFailed
from tests.constrain.conftest import SMOLLM2_WIDTH
from tests.constrain.runtime.test_matcher import CLOSED, END, PERSON, WORDS, constrain, ids, pattern
from tests.constrain.schemas import instances, schemas
from tests.constrain.walks import compact

Rows = NDArray[np.int32]


def alone(constraint: GrammarConstraint, ahead: list[int], num_words: int = WORDS) -> Rows:
    rows: Rows = np.zeros((len(ahead) + 1, num_words), dtype=np.int32)
    return rows[: constraint.write_masks(ahead, rows.data)]


@cache
def group_of(tokens: Tokens) -> LlguidanceMasks:
    return LlguidanceMasks(tokens, num_threads=2)


def together(tasks: list[tuple[GrammarConstraint, list[int]]], num_words: int = WORDS) -> list[Rows]:
    group = group_of(tasks[0][0]._tokens)
    rows: list[Rows] = [np.zeros((len(ahead) + 1, num_words), dtype=np.int32) for _, ahead in tasks]
    asked = [(constraint, ahead, out.data) for (constraint, ahead), out in zip(tasks, rows, strict=True)]
    found = group.write_masks(asked)
    return [out[:num] for out, num in zip(rows, found, strict=True)]


def assert_equal_rows(tasks: list[tuple[GrammarConstraint, list[int]]], num_words: int = WORDS) -> None:
    wanted = [alone(constraint, ahead, num_words) for constraint, ahead in tasks]
    for found, rows in zip(together(tasks, num_words), wanted, strict=True):
        np.testing.assert_array_equal(found, rows)


def test_rows_of_several_states_equal_those_of_each_alone(grammars: Grammars) -> None:
    name = constrain(grammars, PERSON)
    name.advance(ids('{"name":"B'))
    ended = pattern(grammars, "a*")
    ended.advance([ord("a"), END])
    tasks = [
        (constrain(grammars, PERSON), []),  # forced
        (constrain(grammars, PERSON), ids('{"name":"Bo","ok":true}')),
        (name, ids('o",')),
        (name.copy(), ids("\n")),  # illegal at once
        (ended, ids("a")),
        (pattern(grammars, "a*b"), ids("aax")),
    ]
    assert_equal_rows(tasks)
    assert_equal_rows(tasks)  # the automata went back


def test_a_long_number_is_limited_in_a_group_too(grammars: Grammars) -> None:
    constraint = constrain(grammars, CLOSED)
    constraint.advance(ids('{"name":"","size":' + "1" * 18))
    assert_equal_rows([(constraint, ids("23")), (constraint.copy(), ids("4"))])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(schemas(), instances(), st.integers(0, 12), st.integers(0, 6)), min_size=2, max_size=6))
def test_random_schemas_and_texts_have_the_same_rows(
    grammars: Grammars, cases: list[tuple[Any, Any, int, int]]
) -> None:
    tasks = []
    for schema, instance, num_committed, num_ahead in cases:
        try:
            constraint = constrain(grammars, schema)
        except (InvalidGrammar, InvalidRequest):
            continue
        text = ids(compact(instance))
        committed = text[: min(num_committed, constraint.legal_prefix(text))]
        constraint.advance(committed)
        tasks.append((constraint, text[len(committed) :][:num_ahead]))
    if tasks:
        assert_equal_rows(tasks)


def test_rows_of_a_large_vocabulary(smollm2: Grammars) -> None:
    constraints = [constrain(smollm2, PERSON) for _ in range(5)]
    for constraint in constraints[1:]:
        constraint.advance(constraint.forced())
    assert_equal_rows([(constraint, []) for constraint in constraints], -(-SMOLLM2_WIDTH // 32))


def test_a_failed_automaton_is_named_and_changes_no_other(grammars: Grammars) -> None:
    broken, sound = pattern(grammars, "abc"), constrain(grammars, PERSON)
    with pytest.raises(RowFailed, match="does not fit"):
        broken.advance(ids("x"))
    with pytest.raises(RowFailed, match="automaton failed"):
        together([(sound, ids('{"na')), (broken, []), (constrain(grammars, CLOSED), [])])
    assert_equal_rows([(sound, ids('{"na')), (constrain(grammars, CLOSED), [])])


@pytest.mark.parametrize(("cores", "num_threads"), [(1, None), (3, None), (4, 2), (64, 8)])
def test_threads_leave_two_cores(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch, cores: int, num_threads: int | None
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    group = LlguidanceMasks.for_machine(grammars._tokens)
    assert (group and group._num_threads) == num_threads
