"""The `confidence` decoder on scripted proposals."""

from __future__ import annotations

import pytest

from quicksilver.core import CommitRule, DecoderName, DecoderParams
from quicksilver.diffusion.confidence import Confidence
from tests.support.proposals import proposal, proposal_of


def test_confidence_commits_the_leading_run_and_keeps_confident_tokens_further_right() -> None:
    decoder = Confidence(DecoderParams(name=DecoderName.CONFIDENCE, canvas_len=5, threshold=0.9))
    first = decoder.decide(decoder.open(100), proposal([1, 2, 3, 4, 5], [0.2, 0.95, 0.3, 0.95, 0.1]))
    assert first.commit == [1, 2]
    assert first.canvas is not None
    assert first.canvas.is_masked.tolist() == [True, False, True, True, True]
    assert decoder.tail(first.canvas).token_ids[1] == 4
    second = decoder.decide(first.canvas, proposal([3, 99, 6, 7, 8], [0.5, 0.99, 0.2, 0.2, 0.2]))
    assert second.commit == [3, 4]


@pytest.mark.parametrize(
    ("rule", "is_masked"),
    [
        (CommitRule.THRESHOLD, [False, True, False, True]),
        (CommitRule.STATIC, [False, False, False, True]),
        (CommitRule.FACTOR, [False, True, False, True]),
        (CommitRule.ENTROPY, [False, False, True, True]),
    ],
)
def test_each_rule_decides_its_own_positions(rule: CommitRule, is_masked: list[bool]) -> None:
    """Position 0 always commits, so that the canvas slides by the leading decided run."""
    params = DecoderParams(DecoderName.CONFIDENCE, 4, rule, threshold=0.9, steps=2, factor=0.2, entropy_bound=0.15)
    decoder = Confidence(params)
    found = decoder.decide(decoder.open(4), proposal_of(range(4), [0.1, 0.5, 0.95, 0.2], [0.1, 0.2, 0.9, 0.9]))
    num_committed = is_masked.index(True)
    assert found.commit == list(range(num_committed))
    assert found.canvas is not None
    assert found.canvas.is_masked.tolist() == is_masked[num_committed:] + [True] * num_committed
