"""The `verify` decoder on scripted proposals."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.core import DecoderParams
from quicksilver.diffusion.verify import MIN_CANVAS_CONFIDENCE, NGRAM_LEN, WINDOW, Verify, count_accepted
from tests.support.proposals import confident, with_lookup


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


EARLIER = [1, 2, 3, 4, 5, 6, 7, 8]


def looked_up(text: list[int], draft: list[int]) -> list[int]:
    """With a canvas that is confident of nothing."""
    return with_lookup(text, np.array(draft, np.int64), np.zeros(len(draft), np.float32)).tolist()


@pytest.mark.parametrize(
    ("text", "draft", "wanted"),
    [
        ([*EARLIER, 9, 1, 2, 3, 4], [5, 0, 0], [5, 6, 7]),
        ([*EARLIER, 9, 1, 2, 3, 4], [0, 6, 7], [0, 6, 7]),
        ([*EARLIER, 9, 0, 2, 3, 4], [5, 0, 0], [5, 0, 0]),
        ([*EARLIER, 1, 2, 3, 4], [5, 0, 0, 0, 0, 0, 11], [5, 6, 7, 8, 1, 2, 3]),
        ([1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 4], [6, 0], [6, 1]),
        ([7, 7, 7, 7, 7], [7, 8, 9], [7, 8, 9]),
        ([7, 7, 7, 7], [7, 8], [7, 8]),
        ([1, 2], [3], [3]),
        ([*EARLIER, 1, 2, 3, 4], [], []),
    ],
    ids=[
        "what followed then follows now",
        "the first token must be the canvas draft",
        "three tokens are too few",
        "the lookup reads up to the end of the text",
        "the latest occurrence counts",
        "a repeat that overlaps its own end",
        "the end itself is not an earlier occurrence",
        "a short text",
        "nothing to draft",
    ],
)
def test_drafts(text: list[int], draft: list[int], wanted: list[int]) -> None:
    assert looked_up(text, draft) == wanted


def test_the_canvas_draft_follows_the_looked_up_tokens() -> None:
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    assert looked_up(text, [5, 9, 9, 9, 9, 9, 8, 7]) == [5, 6, 1, 2, 3, 4, 8, 7]


def test_a_confident_canvas_token_ends_the_lookup() -> None:
    text, draft = [*EARLIER, 9, 1, 2, 3, 4], np.array([5, 6, 30, 8])
    for sure, wanted in ((MIN_CANVAS_CONFIDENCE - 0.01, [5, 6, 7, 8]), (MIN_CANVAS_CONFIDENCE, [5, 6, 30, 8])):
        assert with_lookup(text, draft, np.array([0.1, 1.0, sure, 1.0], np.float32)).tolist() == wanted


def test_occurrences_outside_the_window_are_ignored() -> None:
    text = [*EARLIER, *range(100, 100 + WINDOW), 1, 2, 3, 4]
    assert looked_up(text, [5, 0]) == [5, 0]
    near = [*EARLIER, *range(100, 100 + WINDOW - 2 * NGRAM_LEN - 8), 1, 2, 3, 4]
    assert looked_up(near, [5, 0]) == [5, 6]
