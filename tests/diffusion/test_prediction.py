"""Drafts from a prediction: found again after changes, never a different text, fewer rounds."""

from __future__ import annotations

import pytest

from quicksilver.core import ConstraintSpec, DecodeParams, Delta, Request, Usage
from quicksilver.diffusion.prediction import FIRST_DRAFT, LONGEST_DRAFT, Prediction
from quicksilver.diffusion.verify import count_accepted
from quicksilver.engine.config import EngineConfig
from tests.support.staircase import STOP, Staircase
from tests.support.tiny import answers, decode_params, finish_all, tiny_engine

FILE = list(range(100, 400))
PROMPT = tuple(range(5, 25))


def test_the_first_draft_is_the_beginning() -> None:
    assert Prediction(FILE).draft([], 1000) == FILE[:FIRST_DRAFT]
    assert Prediction(FILE).draft([], 3) == FILE[:3]


def test_drafts_double_while_they_are_accepted() -> None:
    prediction, lengths = Prediction(FILE), []
    answer: list[int] = []
    for _ in range(5):
        draft = prediction.draft(answer, 1000)
        lengths.append(len(draft))
        prediction.observe(len(draft), len(draft))
        answer = FILE[: len(answer) + len(draft) + 1]
    assert lengths == [16, 32, 64, 128, len(FILE) - 16 - 32 - 64 - 128 - 4]
    prediction.observe(20, LONGEST_DRAFT)
    assert len(prediction.draft(answer[:8], 1000)) == LONGEST_DRAFT // 2
    prediction.observe(0, LONGEST_DRAFT // 2)
    assert len(prediction.draft(answer[:8], 1000)) == FIRST_DRAFT


@pytest.mark.parametrize(
    ("answer", "following"),
    [
        ([*FILE[:20], 1, 2], None),
        ([*FILE[:20], 1, 2, *FILE[21:24]], 124),
        ([*FILE[:20], *FILE[30:33]], 133),
        ([*FILE[:20], 1, *FILE[20:22]], None),
        ([FILE[0]], 101),
        ([7], None),
        ([*FILE[:50], *FILE[48:51]], 151),
        (FILE, None),
    ],
    ids=[
        "a change is not in the prediction",
        "three equal tokens after a change",
        "a removed passage",
        "two equal tokens are too few",
        "the first token",
        "another first token",
        "a repeated passage",
        "nothing follows the end",
    ],
)
def test_the_place_is_found_again(answer: list[int], following: int | None) -> None:
    assert Prediction(FILE).draft(answer, 1000)[:1] == ([] if following is None else [following])


def test_after_drafts_that_were_rejected_a_longer_match_is_needed() -> None:
    prediction, answer = Prediction(FILE), [1, 2, *FILE[20:24]]
    assert prediction.draft(answer, 1) == [124]
    prediction.observe(1, 16)
    assert prediction.draft(answer, 1) == []
    assert prediction.draft([1, 2, *FILE[20:26]], 1) == [126]
    prediction.observe(4, 16)
    assert prediction.draft(answer, 1) == [124]


def test_of_equal_passages_the_nearest_counts() -> None:
    block = [1, 2, 3, 4]
    prediction = Prediction([*block, 50, *block, 60, *block, 70])
    prediction.observe(6, 6)
    assert prediction.draft([9, *block], 1) == [60]


def count_rounds(answer: list[int], prediction: list[int], num_canvas_tokens: int) -> int:
    """Rounds of an answer whose every round without a prediction commits `num_canvas_tokens`."""
    state, num_done, rounds = Prediction(prediction), 0, 0
    while num_done < len(answer):
        draft = state.draft(answer[:num_done], len(answer) - num_done - 1)
        num_accepted = count_accepted(answer[num_done:], draft)
        if draft:
            state.observe(num_accepted, len(draft))
        num_done += num_accepted + 1 if draft else num_canvas_tokens
        rounds += 1
    return rounds


@pytest.mark.parametrize("num_new", [0, 1, 12])
def test_a_changed_line_of_a_long_file_costs_three_times_fewer_rounds_than_perfect_canvases(num_new: int) -> None:
    """2,400 tokens in lines of 8, of which many are equal; a canvas of 16 commits at most 17 tokens in a round."""
    lines = [[1, 2, 3 + i % 5, 10, 11, 50 + i % 7, 100 + i, 0] for i in range(300)]
    changed = [*lines[:150], [*lines[150][:4], *range(900, 900 + num_new), *lines[150][5:]], *lines[151:]]
    before, after = ([token for line in each for token in line] for each in (lines, changed))
    answer = [997, 998, *after, 999]  # a code fence around the file
    assert count_rounds(answer, before, num_canvas_tokens=2) * 3 <= len(answer) / 17


def run(prediction: tuple[int, ...], params: DecodeParams, constraint: ConstraintSpec | None = None) -> list[Delta]:
    engine = tiny_engine(EngineConfig(num_pages=64, max_rows=96))
    engine.constraints = lambda spec: Staircase(25)
    engine.add(Request("x", PROMPT, params, constraint=constraint, prediction=prediction))
    deltas = finish_all(engine)["x"]
    assert engine.pool.num_free == 64
    return deltas


def last_usage(deltas: list[Delta]) -> Usage:
    assert deltas[-1].usage is not None
    return deltas[-1].usage


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_changed_passage_costs_few_rounds_and_changes_no_token(temperature: float) -> None:
    params = decode_params("verify", canvas_len=16, max_new_tokens=300, temperature=temperature, seed=3)
    plain = run((), params)
    text = answers({"x": plain})["x"]
    predicted = run((*text[:150], 90, 91, 92, *text[151:]), params)
    assert answers({"x": predicted})["x"] == text
    before, after = last_usage(plain), last_usage(predicted)
    assert after.rounds * 3 <= before.rounds
    assert after.forwards * 3 <= before.forwards
    assert 250 < after.predicted <= after.accepted <= after.drafted
    assert before.predicted == 0


def test_a_wrong_prediction_changes_no_token() -> None:
    params = decode_params("verify", canvas_len=8, max_new_tokens=60)
    text = answers({"x": run((), params)})["x"]
    for wrong in ((96,) * 40, tuple(reversed(text)), tuple(text[30:]), (*text, *text)):
        assert answers({"x": run(wrong, params)})["x"] == text


def test_other_decoders_ignore_it() -> None:
    params = decode_params("ar", canvas_len=1, max_new_tokens=20)
    plain = run((), params)
    predicted = run(tuple(answers({"x": plain})["x"]), params)
    assert answers({"x": predicted}) == answers({"x": plain})
    assert last_usage(predicted).rounds == last_usage(predicted).predicted == 0


def test_a_grammar_cuts_the_draft_before_its_first_illegal_token() -> None:
    params = decode_params("verify", canvas_len=8, max_new_tokens=60, stop_ids=(STOP,))
    spec = ConstraintSpec("staircase")
    plain = run((), params, spec)
    text = answers({"x": plain})["x"]
    predicted = run((*text[:10], 0, *text[11:]), params, spec)
    assert answers({"x": predicted})["x"] == text
    assert last_usage(predicted).predicted > 0


def test_the_counts_of_accepted_tokens_add_up() -> None:
    usage = last_usage(run((), decode_params("verify", canvas_len=8, max_new_tokens=60)))
    assert sum(i * count for i, count in enumerate(usage.acceptance)) == usage.accepted
    assert 0 < sum(usage.acceptance) <= usage.rounds
