"""`benchmarks.edit_threshold`: the threshold that feedback chooses, and what it hides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.edit_threshold import figures, gain, threshold
from benchmarks.feedback_kto import Asked
from tests.tuning.test_feedback_kto import OTHER, REGION, TARGET, asked


def likely(kind: str, answer: str, log_prob: float) -> Asked:
    one = asked(kind, answer)
    return replace(one, proposal=replace(one.proposal, log_prob=log_prob))


ACCEPTED = [likely("next", TARGET, -float(i)) for i in range(20)]
REJECTED = [likely("next", OTHER, -18.5), likely("noop", OTHER, -30.0), likely("next", REGION, -40.0)]


@pytest.mark.parametrize(("hidden", "least"), [(0.0, -19.0), (0.05, -18.0), (0.1, -17.0)])
def test_a_threshold_hides_at_most_its_share_of_the_accepted_edits(hidden: float, least: float) -> None:
    assert threshold(ACCEPTED + REJECTED, hidden) == least
    kept = figures(ACCEPTED + REJECTED, least)
    assert kept["accepted"] >= 20 * (1 - hidden)


def test_without_accepted_edits_there_is_no_threshold() -> None:
    assert threshold(REJECTED, 0.0) == -math.inf


def test_a_noop_whose_edit_is_hidden_is_left_alone() -> None:
    found = figures(REJECTED, -20.0)
    assert (found["shown"], found["noops"], found["noops_left_alone"]) == (1, 1, 1)
    assert figures(REJECTED, -math.inf)["noops_left_alone"] == 0


def test_the_gain_is_the_ratio_of_the_shares_with_an_interval() -> None:
    found = gain((ACCEPTED + [likely("next", OTHER, -30.0)] * 20) * 5, -19.0)
    assert found["ratio"] == pytest.approx(2.0)
    assert found["interval_90"][0] <= 2.0 <= found["interval_90"][1]
