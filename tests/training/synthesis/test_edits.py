"""Next-edit rows."""

from __future__ import annotations

import itertools
import random

from quicksilver.editing.hunks import hunks
from quicksilver.training.synthesis.edits import edit_rows, is_implied

OLD = """def f(count, data):
    total = 0
    for item in data:
        total += item * count
    print(total)
    return total"""


NEW = OLD.replace("total", "result")


def test_edit_rows_rewrite_the_region_they_show() -> None:
    edit = {"a": OLD, "b": NEW, "f": "m.py"}
    rows = list(itertools.chain.from_iterable(edit_rows(edit, random.Random(seed)) for seed in range(40)))
    assert {row.answer == row.request.region for row in rows} == {True, False}
    for row in rows:
        request = row.request
        assert request.cursor is None or 0 <= request.cursor <= len(request.region)
        assert request.history
        # The history is applied: the lines it added are in the file.
        added = [line[1:] for line in request.history[-1].splitlines() if line.startswith("+") and line[1:2] != "+"]
        assert all(line in request.before + request.region + request.after for line in added)


def test_a_repeated_rename_is_implied_and_an_unrelated_change_is_not() -> None:
    first, *_, last = hunks(OLD.splitlines(), NEW.splitlines())
    assert is_implied([first], last)
    other = hunks(["a = 1", "b = 2"], ["a = 1", "c = 3"])[0]
    assert not is_implied([first], other)
