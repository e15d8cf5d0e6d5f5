"""Answers of each kind of question, in both forms."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from quicksilver.core import Usage
from quicksilver.server.endpoints.decisions.format import (
    best_of,
    decision_usage,
    mean_level,
    named_answer,
    typed_answer,
)
from quicksilver.server.endpoints.decisions.wire import NamedQuestion, TypedQuestion
from quicksilver.text.answer import Finished


def typed(**fields: Any) -> TypedQuestion:
    found: TypedQuestion = TypeAdapter(TypedQuestion).validate_python({"instructions": "?", **fields})
    return found


def named(**fields: Any) -> NamedQuestion:
    found: NamedQuestion = TypeAdapter(NamedQuestion).validate_python(fields)
    return found


def test_the_first_of_equally_likely_options_is_chosen() -> None:
    assert best_of([0.2, 0.4, 0.4]) == 1


def test_the_score_is_the_mean_level() -> None:
    assert mean_level([0.5, 0.25, 0.25]) == pytest.approx(0.75)


def test_a_predicate_has_the_probability_of_true() -> None:
    answer = typed_answer(typed(type="predicate", name="a"), [0.7, 0.3])
    assert answer == {"type": "predicate", "name": "a", "probability": 0.7}


def test_a_choice_keeps_the_type_of_its_values() -> None:
    question = typed(type="choice", choices=[{"value": "true"}, {"value": True}])
    assert typed_answer(question, [0.25, 0.75]) == {
        "type": "choice",
        "name": None,
        "choice": True,
        "confidence": 0.75,
        "probabilities": [{"value": "true", "probability": 0.25}, {"value": True, "probability": 0.75}],
    }


def test_a_score_lists_its_levels() -> None:
    answer = typed_answer(typed(type="score", levels=[{"label": "low"}, {"label": "high"}]), [0.25, 0.75])
    assert answer == {
        "type": "score",
        "name": None,
        "score": 0.75,
        "confidence": 0.75,
        "probabilities": [
            {"value": 0, "label": "low", "probability": 0.25},
            {"value": 1, "label": "high", "probability": 0.75},
        ],
    }


def test_named_answers_have_the_form_of_their_question() -> None:
    assert named_answer(named(type="noul", instructions="?"), [0.9, 0.1]) == {"type": "noul", "noul": 0.9}
    assert named_answer(named(type="choice", criteria={"a": None, "b": "x"}), [0.4, 0.6]) == {
        "type": "choice",
        "choice": "b",
        "confidence": 0.6,
        "probabilities": {"a": 0.4, "b": 0.6},
    }
    assert named_answer(named(type="score", criteria=["low", {"is": "high"}]), [0.5, 0.5]) == {
        "type": "score",
        "score": 0.5,
        "confidence": 0.5,
        "legend": {"0": "low", "1": {"is": "high"}},
        "probabilities": {"0": 0.5, "1": 0.5},
    }


def test_usage_counts_questions_as_output() -> None:
    usage = decision_usage(Finished(usage=Usage(10, 4, 3)))
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 3, 13)
    assert usage["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}
