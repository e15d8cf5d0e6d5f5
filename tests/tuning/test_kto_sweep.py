"""`benchmarks.kto_sweep`: which setting and which threshold are chosen."""

from __future__ import annotations

import pytest

from benchmarks.edit_records import EditorRequest, message_of
from benchmarks.feedback_kto import Asked
from benchmarks.kto_records import shortened
from benchmarks.kto_sweep import Setting, accepted_change, chosen_of, with_threshold
from quicksilver.training.proposals import EditPrompt, judged
from tests.tuning.test_feedback_kto import RECORD

WANTED, OTHER = "a = 2", "a = 3000"


def asked(answer: str, log_prob: float) -> Asked:
    edit = EditPrompt([1], "a = 1", WANTED, "next")
    return Asked(EditorRequest("", "", edit), "", judged(edit, [1], answer, log_prob))


BASE = [asked(WANTED, -1.0), asked(WANTED, -2.0), asked(OTHER, -1.5), asked(OTHER, -3.0)]
# One more accepted edit, so that the least likely one may be hidden.
BETTER = [asked(WANTED, -1.0), asked(WANTED, -1.2), asked(WANTED, -4.0), asked(OTHER, -2.0)]
WORSE = [asked(WANTED, -1.0), asked(OTHER, -2.0), asked(OTHER, -1.5), asked(OTHER, -3.0)]


def test_a_setting_has_a_name_and_a_file() -> None:
    setting = Setting.parse("0.4,0.1,0.5")
    assert (setting.name, setting.lines) == ("0.4-0.1-0.5", "feedback-kto-0.5.jsonl")


def test_a_shortened_record_gives_the_same_message() -> None:
    record = {**RECORD, "id": "1", "repo": "r", "target": "", "kind": "next", "before": "a\nb\nc", "after": "d\ne\nf"}
    assert message_of(shortened(record, 1), 1) == message_of(record, 1)
    assert len(shortened(record, 1)["before"]) == 1


def test_the_threshold_keeps_the_accepted_edits_that_are_asked_for() -> None:
    assert with_threshold(BETTER, 2) == -1.2
    assert with_threshold(BETTER, 3) == -4.0
    assert with_threshold(BETTER, 4) is None


def test_the_setting_with_the_highest_share_is_chosen() -> None:
    rows, chosen = chosen_of(BASE, {"worse": WORSE, "better": BETTER}, margin=0.0)
    assert chosen == "better"
    assert rows["better"]["with_threshold"]["accepted_of_shown"] == 1.0
    assert rows["worse"]["with_threshold"] is None


def test_without_a_setting_that_meets_the_margin_it_is_dropped() -> None:
    rows, chosen = chosen_of(BASE, {"better": BETTER, "same": BASE}, margin=0.6)
    assert (chosen, rows["better"]["margin"], rows["same"]["margin"]) == ("better", 0.0, 0.0)
    _, chosen = chosen_of(BASE, {"worse": WORSE}, margin=0.0)
    assert chosen == "worse"


def test_the_change_of_accepted_edits_has_an_interval() -> None:
    found = accepted_change(BASE * 20, BETTER * 20)
    assert found["change"] == 20
    assert found["interval_90"][0] < 20 < found["interval_90"][1]
    assert found["interval_90"][0] == pytest.approx(14, abs=4)
