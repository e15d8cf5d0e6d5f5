"""Proposals: which are accepted, and the curve of shown and accepted proposals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from quicksilver.training.answers import Answered, Asked
from quicksilver.training.proposals import (
    EditPrompt,
    Proposal,
    answer_room,
    by_kind,
    chrf,
    delta_chrf,
    judged,
    proposed,
    read_edit_prompts,
    read_proposals,
    selectivity_curve,
    selectivity_text,
    thinned,
    write_edit_prompts,
    write_proposals,
)
from quicksilver.training.recipe import Propose
from tests.support.small_tokenizer import small_tokenizer

REGION = "def area(width, height):\n    return width * high\n\nprint(area(2, 3))"
TARGET = REGION.replace("high", "height")
EDIT = EditPrompt([1, 2], REGION, TARGET, "next")


def test_chrf_equals_a_score_worked_out_by_hand() -> None:
    # Unigrams: 3 of 4 shared on both sides; bigrams: 2 of 3; trigrams: 1 of 2; longer ones: none of 1, 0 and 0.
    assert chrf("abcx", "abcd") == pytest.approx(100 * (3 / 4 + 2 / 3 + 1 / 2 + 0) / 4)
    assert chrf("same", "same") == 100


def test_delta_chrf_compares_changed_lines_only() -> None:
    assert delta_chrf(REGION, TARGET, TARGET) == 100
    other = REGION.replace("width * high", "0")
    assert delta_chrf(REGION, other, TARGET) == pytest.approx(chrf("    return 0", "    return width * height"))


def test_the_wanted_region_is_accepted_and_another_change_is_not() -> None:
    assert judged(EDIT, [5], TARGET + "\n", 0.0).is_accepted
    wrong = judged(EDIT, [5], REGION.replace("2, 3", "4, 5"), 0.0)
    assert wrong.is_shown
    assert not wrong.is_accepted


def test_a_nearly_equal_change_of_many_lines_is_accepted() -> None:
    lines = "\n".join(f"    total += items[{i}].price * quantity" for i in range(30))
    edit = EditPrompt([1], "", lines, "next")
    assert judged(edit, [5], lines.replace("[29]", "[28]"), 0.0).is_accepted


def test_silence_on_a_wanted_edit_is_rejected_and_not_shown() -> None:
    silent = judged(EDIT, [5], REGION, 0.0)
    assert not silent.is_shown
    assert not silent.is_accepted


def test_every_change_of_a_region_that_should_stay_is_rejected() -> None:
    noop = EditPrompt([1], REGION, REGION, "noop")
    assert judged(noop, [5], REGION, 0.0).is_accepted
    assert not judged(noop, [5], TARGET, 0.0).is_accepted


def test_the_curve_shows_the_surest_proposals_first() -> None:
    made = [Proposal([1], [2], "next", True, i < 3, -float(i)) for i in range(5)]
    made += [Proposal([1], [2], "noop", False, True, 0.0)] * 5
    curve = selectivity_curve(made, num_points=5)
    assert [point["shown"] for point in curve] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])
    assert [point["accepted"] for point in curve] == pytest.approx([0.3, 0.3, 0.3, 0.2, 0.1])
    assert curve[0]["accepted_of_shown"] == pytest.approx(0.6)
    assert curve[2]["accepted_of_shown"] == pytest.approx(1.0)


def test_the_curve_is_one_line() -> None:
    made = [Proposal([1], [2], "next", True, i < 3, -float(i)) for i in range(5)]
    assert selectivity_text(made).startswith("shown -> accepted: 1.00 -> 0.60 (60 %), 0.80 -> 0.60 (75 %)")


def test_thinning_keeps_every_rejected_proposal() -> None:
    made = [Proposal([i], [2], "next", True, i >= 3) for i in range(20)]
    kept = thinned(made, 2.0, seed=1)
    assert len(kept) == 9
    assert sum(not p.is_accepted for p in kept) == 3
    assert len(thinned(made, 0.0, seed=1)) == 20


def test_shares_by_kind() -> None:
    table = by_kind([judged(EDIT, [5], text, 0.0) for text in (TARGET, REGION)])
    assert table == {"next": {"count": 2, "shown": 0.5, "accepted": 0.5}}


def test_edit_prompts_and_proposals_are_read_as_written(tmp_path: Path) -> None:
    write_edit_prompts(tmp_path / "edits.xz", [EDIT])
    assert read_edit_prompts(tmp_path / "edits.xz") == [EDIT]
    proposal = judged(EDIT, [5, 6], TARGET, -1.5)
    write_proposals(tmp_path / "proposals.xz", [proposal])
    assert read_proposals(tmp_path / "proposals.xz") == [proposal]


def test_a_proposal_is_a_document_whose_answer_counts() -> None:
    document = judged(EDIT, [5, 6], TARGET, 0.0).document()
    assert document.token_ids.tolist() == [1, 2, 5, 6]
    assert document.is_answer.tolist() == [False, False, True, True]


TOKENIZER = small_tokenizer()
EDITS = [EditPrompt([i], region, region + "!", "next") for i, region in enumerate(("long region", "b", "mid"))]


class ScriptedDecoder:
    """Answers every prompt with the expected region."""

    def __init__(self) -> None:
        self.batches: list[list[Asked]] = []

    def answers(self, asked: Sequence[Asked]) -> list[Answered]:
        self.batches.append(list(asked))
        targets = [EDITS[one.prompt[0]].target for one in asked]
        return [Answered(list(TOKENIZER.encode(target)), -1.0) for target in targets]


def run(spec: Propose) -> tuple[list[int], ScriptedDecoder]:
    decoder = ScriptedDecoder()
    found = proposed(decoder, EDITS, spec, TOKENIZER)  # type: ignore[arg-type]
    assert all(proposal.is_accepted and proposal.is_shown for proposal in found)
    return [proposal.prompt[0] for proposal in found], decoder


def test_short_regions_are_answered_first_in_batches() -> None:
    order, decoder = run(Propose(batch=2))
    assert order == [1, 2, 0]
    assert [len(batch) for batch in decoder.batches] == [2, 1]


def test_a_run_ends_with_the_batch_in_which_its_time_is_over() -> None:
    order, _ = run(Propose(batch=1, max_seconds=-1.0))
    assert order == [1]


def test_an_answer_may_be_longer_than_its_region() -> None:
    assert answer_room(TOKENIZER, "abcd", 10) == 16
    _, decoder = run(Propose(spare_tokens=5))
    assert [one.max_new_tokens for one in decoder.batches[0]] == [6, 9, 21]
