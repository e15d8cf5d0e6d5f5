"""Evidence about an answer, and the gate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.core import Delta, FinishReason, TokenLogprob, Usage
from quicksilver.server.hybrid.gate import ConfidenceMeter, Evidence, evidence_of, find_doubt
from quicksilver.server.hybrid.policy import GateSettings
from quicksilver.text.answer import Finished


def delta(*logprobs: float, forced: int = 0) -> Delta:
    ids = tuple(range(len(logprobs)))
    found = tuple(TokenLogprob(i, p) for i, p in zip(ids, logprobs, strict=True))
    return Delta("r", ids, found, num_forced=forced)


def test_a_meter_leaves_out_tokens_that_were_forced() -> None:
    meter = ConfidenceMeter()
    meter.add(delta(-1.0, 0.0, 0.0, forced=2))
    meter.add(delta(-3.0))
    meter.add(Delta("r"))
    found = evidence_of([meter], [Finished()])
    assert (found.mean_logprob, found.min_logprob) == (-2.0, -3.0)


def test_the_least_confident_of_several_answers_counts() -> None:
    meters = [ConfidenceMeter(-2.0, -1.5, 2), ConfidenceMeter(-9.0, -6.0, 3), ConfidenceMeter()]
    finished = [
        Finished(usage=Usage(drafted=10, accepted=9)),
        Finished(FinishReason.LENGTH, Usage(drafted=10, accepted=2)),
    ]
    assert evidence_of(meters, finished) == Evidence(-3.0, -6.0, 0.2, is_complete=False)


def test_an_answer_from_labels_has_the_probability_of_its_label() -> None:
    found = evidence_of([], [Finished(probabilities={"a": 0.25, "b": 0.75})])
    assert found.mean_logprob == pytest.approx(math.log(0.75))


def test_an_unmeasured_value_does_not_fail() -> None:
    gate = GateSettings(mean_logprob=-0.1, min_logprob=-0.1, acceptance=0.9, question="Right?")
    assert find_doubt(gate, Evidence()) is None


@pytest.mark.parametrize(
    ("gate", "evidence", "word"),
    [
        (GateSettings(), Evidence(is_complete=False), "cut"),
        (GateSettings(mean_logprob=-1), Evidence(mean_logprob=-1.5), "mean"),
        (GateSettings(min_logprob=-1), Evidence(min_logprob=-1.5), "least"),
        (GateSettings(acceptance=0.5), Evidence(acceptance=0.4), "acceptance"),
        (GateSettings(question="Right?"), Evidence(yes=0.4), "yes"),
        (GateSettings(mean_logprob=-1), Evidence(mean_logprob=math.nan), "mean"),
    ],
)
def test_doubts(gate: GateSettings, evidence: Evidence, word: str) -> None:
    doubt = find_doubt(gate, evidence)
    assert doubt is not None
    assert word in doubt


def test_gates_can_be_off() -> None:
    assert find_doubt(GateSettings(complete=False), Evidence(is_complete=False, mean_logprob=-99)) is None


@given(st.floats(-20, 0), st.floats(-20, 0), st.floats(-20, 0))
def test_a_higher_threshold_never_lets_more_answers_pass(value: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    evidence = Evidence(mean_logprob=value)
    if find_doubt(GateSettings(mean_logprob=high), evidence) is None:
        assert find_doubt(GateSettings(mean_logprob=low), evidence) is None
