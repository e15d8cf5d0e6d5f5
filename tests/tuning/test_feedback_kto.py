"""`benchmarks.feedback_kto`: requests of an editor from records, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.edit_records import EditorRequest, message_of
from benchmarks.feedback_kto import Asked, figures, gain, hidden_below, threshold
from quicksilver.editing.prompts import parse_edit
from quicksilver.training.proposals import EditPrompt, judged
from quicksilver.training.synthesis.commits import request_of

RECORD: dict[str, Any] = {
    "path": "shapes.py",
    "before": "import math\n\n",
    "region": "def area(w):\n    return w * w",
    "after": "\nprint(area(2))",
    "cursor": [1, 12],
    "snippets": [],
    "history": ["--- shapes.py\n+++ shapes.py\n@@ -1,1 +1,1 @@\n-def area(x):\n+def area(w):\n"],
}
REGION, TARGET, OTHER = "a = 1", "a = 2", "a = 3000"


def asked(kind: str, answer: str, log_prob: float = 0.0) -> Asked:
    edit = EditPrompt([1], REGION, REGION if kind == "noop" else TARGET, kind)
    return Asked(EditorRequest("", "", edit), "", judged(edit, [1], answer, log_prob))


def test_a_message_is_read_as_the_request_of_its_record() -> None:
    assert parse_edit(message_of(RECORD, 6)) == request_of(RECORD)
    short = parse_edit(message_of({**RECORD, "before": "a\nb\nc", "after": "d\ne"}, 1))
    assert (short.before, short.after) == ("c\n", "\nd")
    alone = parse_edit(message_of({**RECORD, "before": "", "after": "", "history": []}, 1))
    assert (alone.before, alone.after, alone.history) == ("", "", ())


def test_an_edit_that_changes_nothing_is_not_shown_and_not_accepted() -> None:
    found = figures([asked("next", TARGET), asked("next", OTHER), asked("next", REGION), asked("noop", REGION)])
    assert (found["requests"], found["shown"], found["accepted"], found["accepted_of_shown"]) == (4, 2, 1, 0.5)
    assert (found["noops"], found["noops_left_alone"]) == (1, 1)


def test_every_change_of_a_noop_is_rejected() -> None:
    found = figures([asked("noop", TARGET), asked("next", TARGET)])
    assert (found["shown"], found["accepted"], found["noops_left_alone"]) == (2, 1, 0)


def test_the_gain_is_the_ratio_of_the_shares_with_an_interval() -> None:
    before = [asked("next", TARGET), asked("next", OTHER), asked("noop", OTHER), asked("next", OTHER)] * 20
    after = [asked("next", TARGET), asked("next", OTHER), asked("noop", REGION), asked("next", REGION)] * 20
    found = gain(before, after)
    assert found["ratio"] == pytest.approx(2.0)
    low, high = found["interval_90"]
    assert 1.5 < low < 2.0 < high < 3.0


def test_a_threshold_hides_the_unlikely_edits_and_no_accepted_one() -> None:
    chosen = [asked("next", TARGET, -2.0), asked("next", TARGET, -1.0), asked("next", OTHER, -3.0)]
    least = threshold(chosen)
    assert least == -2.0
    rest = hidden_below([*chosen, asked("next", REGION, -9.0), asked("next", TARGET, -2.5)], least)
    assert [one.proposal.is_shown for one in rest] == [True, True, False, False, False]
    assert [one.proposal.is_accepted for one in rest] == [True, True, False, False, False]
