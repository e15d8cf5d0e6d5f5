"""`benchmarks/hybrid_cascade.py`: the gain of a cascade from recorded answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.cascade_answers import CascadeItem, evidence_of, is_well_formed, scored, value_of
from benchmarks.hybrid_cascade import (
    Item,
    Policy,
    cross_fitted,
    ends_of,
    escalations,
    fit_threshold,
    gain_of,
    line_at,
    outcomes,
    read_items,
)
from quicksilver.evals.tasks.gsm8k import WordProblem
from quicksilver.evals.tasks.programs import Problem
from quicksilver.server.hybrid.gate import Evidence


def item(small: bool, strong: bool = True, logprob: float = -0.5, is_complete: bool = True) -> Item:
    return Item((small, strong), (10, 100), 5, Evidence(mean_logprob=logprob, is_complete=is_complete, yes=0.5))


SURE, UNSURE = item(True, logprob=-0.1), item(False, logprob=-2.0)


def test_a_row_of_the_file_becomes_an_item() -> None:
    evidence = {"mean_logprob": -0.1, "min_logprob": -1.0, "acceptance": None, "is_complete": True, "yes": 0.7}
    row = {"right": [False, True], "tokens": [20, 30], "question_tokens": 25, "evidence": evidence}
    assert read_items([row], 11) == [Item((False, True), (20, 330), 25, Evidence(-0.1, -1.0, None, True, 0.7))]


def test_a_random_choice_reaches_the_line_between_the_models() -> None:
    means = outcomes([SURE, UNSURE], "mean_logprob", [False, True]).mean(axis=0)
    assert means.tolist() == [1.0, 60, 0.5, 10, 1.0, 100]
    assert line_at(means) == pytest.approx(0.5 + 0.5 * 50 / 90)
    assert gain_of(means) == pytest.approx(0.5 - 0.5 * 50 / 90)


def test_beyond_the_cost_of_the_strong_model_the_line_is_its_accuracy() -> None:
    means = outcomes([SURE, UNSURE], "mean_logprob", [True, True]).mean(axis=0)
    assert means[1] == 110
    assert (line_at(means), gain_of(means)) == (1.0, 0.0)


def test_the_question_of_the_gate_costs_tokens() -> None:
    assert outcomes([SURE], "yes", [False])[0, 1] == 15
    assert outcomes([SURE], "mean_logprob", [False])[0, 1] == 10


def test_the_fitted_threshold_separates_right_from_wrong() -> None:
    items = [SURE, UNSURE] * 4
    threshold = fit_threshold(items, "mean_logprob")
    assert -2.0 < threshold <= -0.1
    assert escalations(items, "mean_logprob", threshold) == [False, True] * 4


def test_without_a_gain_nothing_is_escalated_but_what_was_cut_off() -> None:
    items = [item(True, logprob=-0.1), item(True, logprob=-3.0), item(False, False, is_complete=False)]
    threshold = fit_threshold(items, "mean_logprob")
    assert escalations(items, "mean_logprob", threshold) == [False, False, True]


def test_a_gate_that_detects_wrong_answers_has_a_gain_on_the_other_half() -> None:
    items = [SURE, SURE, UNSURE, UNSURE] * 10
    result = cross_fitted(items, "mean_logprob")
    assert (result.accuracy, result.escalated) == (1.0, 0.5)
    assert result.cost == pytest.approx(0.6)
    assert 0 < result.gain_low <= result.gain <= result.gain_high


def test_a_threshold_is_not_applied_to_the_items_that_determined_it() -> None:
    """The first half is separable, the second one is the reverse of it."""
    first, second = [SURE, UNSURE] * 10, [item(True, logprob=-2.0), item(False, logprob=-0.1)] * 10
    items = [each for pair in zip(first, second, strict=True) for each in pair]
    assert cross_fitted(items, "mean_logprob").gain < 0
    assert float(gain_of(outcomes(first, "mean_logprob", [False, True] * 10).mean(axis=0))) > 0


def test_the_interval_of_a_gate_without_information_contains_zero() -> None:
    drawn = np.random.default_rng(1)
    items = [item(bool(drawn.random() < 0.5), logprob=-float(drawn.random())) for _ in range(200)]
    result = cross_fitted(items, "mean_logprob")
    assert result.gain_low <= 0.0 <= result.gain_high or result.gain < 0


def test_a_perfect_gate_asks_the_strong_model_only_where_it_alone_is_right() -> None:
    ends = ends_of([SURE, UNSURE, item(False, False), item(True, False)])
    assert (ends["small"]["accuracy"], ends["strong"]["accuracy"]) == (0.5, 0.5)
    assert ends["perfect_gate"]["accuracy"] == 0.75
    assert ends["perfect_gate"]["cost"] == pytest.approx((10 + 100 / 4) / 100)


@pytest.mark.parametrize(
    ("choice", "values"),
    [
        ({"probabilities": {"a": 0.25, "b": 0.5}, "logprobs": None}, (np.log(0.5), np.log(0.5))),
        ({"logprobs": {"content": [{"logprob": -1.0}, {"logprob": -3.0}]}}, (-2.0, -3.0)),
    ],
    ids=["a chosen label", "text"],
)
def test_the_evidence_of_a_reply(choice: dict[str, Any], values: tuple[float, float]) -> None:
    counted = {"drafted_tokens": 8, "accepted_tokens": 6}
    reply = {"choices": [{"finish_reason": "length", **choice}], "usage": {"quicksilver": counted}}
    found = evidence_of(reply)
    assert (found["mean_logprob"], found["min_logprob"]) == pytest.approx(values)
    assert (found["acceptance"], found["is_complete"]) == (0.75, False)


def sized(chars: int, logprob: float = -0.5) -> Item:
    evidence = Evidence(mean_logprob=logprob)
    return Item((False, True), (10, 100), 5, evidence, sample_cost=20, agreement=0.5, chars=chars)


def test_gates_with_several_bounds() -> None:
    items = [sized(100, -0.1), sized(100, -0.5), sized(100, -2.0), sized(900, -0.5)]
    assert Policy("band", (-1.0, -0.2)).escalates(items) == [False, True, False, True]
    assert Policy("band-short", (-1.0, -0.2, 500)).escalates(items) == [False, True, False, False]
    assert Policy("likely-short", (-0.2, 500)).escalates(items) == [False, True, True, False]
    assert Policy("short", (500,)).escalates(items) == [True, True, True, False]
    assert Policy("long", (500,)).escalates(items) == [False, False, False, True]
    assert Policy("agreement", (0.6,)).escalates(items) == [True] * 4


def test_a_rule_about_the_message_does_not_ask_the_small_model() -> None:
    assert outcomes([sized(100)], "short", [True])[0, 1] == 100
    assert outcomes([sized(100)], "mean_logprob", [True])[0, 1] == 110
    assert outcomes([sized(100)], "agreement", [True])[0, 1] == 130


def test_the_gate_is_chosen_without_the_items_that_it_decides() -> None:
    result = cross_fitted([SURE, SURE, UNSURE, UNSURE] * 10, "chosen", 4)
    assert (result.accuracy, result.escalated) == (1.0, 0.5)
    assert set(result.gates) <= {"mean_logprob", "min_logprob", "likely-short"}


def test_the_linear_gate_separates_what_can_be_separated() -> None:
    assert cross_fitted([SURE, SURE, UNSURE, UNSURE] * 10, "fitted").accuracy == 1.0


PROGRAM = CascadeItem("mbpp", 0, "message", Problem("", "", "f", "assert f(1) == 2"))
SUM = CascadeItem("gsm8k", 0, "message", WordProblem("", 5.0))


def test_a_program_is_well_formed_if_it_defines_the_function() -> None:
    assert is_well_formed(PROGRAM, "```python\ndef f(x):\n    return x\n```")
    assert not is_well_formed(PROGRAM, "```python\ndef g(x):\n    return x\n```")
    assert not is_well_formed(PROGRAM, "```python\ndef f(x:\n```")
    assert (is_well_formed(SUM, "it is 5"), is_well_formed(SUM, "none")) == (True, False)


def test_answers_agree_by_number_and_by_program() -> None:
    assert value_of(SUM, "2 + 3 = 1,005.0") == 1005
    assert value_of(PROGRAM, "def f(x):  # one\n    return x") == value_of(PROGRAM, "def f( x ):\n  return x")


def test_answers_are_scored_afterwards() -> None:
    row = {"task": "gsm8k", "index": 0, "answers": ["so 5", "so 6"], "samples": ["5", "7"]}
    found = scored(row, SUM)
    assert (found["right"], found["agreement"], found["chars"]) == ([True, False], 0.5, 7)
