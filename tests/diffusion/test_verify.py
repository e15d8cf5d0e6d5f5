"""The `verify` decoder on scripted proposals."""

from __future__ import annotations

from quicksilver.core import DecoderParams
from quicksilver.diffusion.verify import Verify, count_accepted
from tests.support.proposals import confident


def test_verify_commits_the_causal_token_then_what_was_confirmed_and_one_more() -> None:
    decoder = Verify(DecoderParams(canvas_len=4))
    drafted = decoder.decide(decoder.open(100), confident([10, 11, 12, 13]))
    assert drafted.commit == [10]
    assert drafted.canvas is not None
    assert decoder.tail(drafted.canvas).token_ids == (11, 12, 13)
    assert decoder.tail(drafted.canvas).is_causal
    verified = decoder.decide(drafted.canvas, confident([11, 12, 99, 50]))
    assert (verified.commit, verified.num_accepted) == ([11, 12, 99], 2)
    assert verified.canvas is None


def test_a_fully_accepted_draft_commits_one_more_token() -> None:
    decoder = Verify(DecoderParams(canvas_len=3))
    drafted = decoder.decide(decoder.open(100), confident([1, 2, 3]))
    assert drafted.canvas is not None
    assert decoder.decide(drafted.canvas, confident([2, 3, 4])).commit == [2, 3, 4]


def test_acceptance_ends_at_the_first_difference() -> None:
    assert count_accepted([1, 2, 3], [1, 2]) == 2
    assert count_accepted([1, 9, 3, 4], [1, 2, 3]) == 1
    assert count_accepted([1], []) == 0


def test_a_canvas_of_one_position_is_autoregression() -> None:
    decoder = Verify(DecoderParams(canvas_len=1))
    canvas = decoder.open(100)
    assert decoder.tail(canvas).token_ids == ()
    decision = decoder.decide(canvas, confident([7]))
    assert (decision.commit, decision.canvas, decision.num_drafted) == ([7], None, 0)
