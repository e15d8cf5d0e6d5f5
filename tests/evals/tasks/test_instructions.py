"""One hundred requests with a checkable form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from quicksilver.evals.task import Answer
from quicksilver.evals.tasks import instructions


def test_there_are_four_requests_of_each_of_25_kinds() -> None:
    kinds = Counter(each.kind for each in instructions.load(Path()))
    assert len(kinds) == 25
    assert set(kinds.values()) == {4}


def test_surrounding_space_is_ignored_and_the_kind_has_its_own_metric() -> None:
    repeat = next(each for each in instructions.load(Path()) if each.kind == "repeat")
    assert instructions.score(repeat, Answer("  lamp lamp lamp\n")) == {"followed": 1.0, "followed_repeat": 1.0}
    assert instructions.score(repeat, Answer("lamp lamp")) == {"followed": 0.0, "followed_repeat": 0.0}
