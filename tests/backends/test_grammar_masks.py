"""`write_masks`: constraints of one group are written in one call, the others by themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from quicksilver.backends.grammar_masks import write_masks
from quicksilver.core import MaskTask
from tests.support.staircase import Staircase


class Group:
    """Writes the masks of its members one by one and counts the calls."""

    def __init__(self) -> None:
        self.num_tasks: list[int] = []

    def write_masks(self, tasks: Sequence[MaskTask[Staircase]]) -> list[int]:
        self.num_tasks.append(len(tasks))
        return [constraint.write_masks(ahead, out) for constraint, ahead, out in tasks]


class Member(Staircase):
    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group  # type: ignore[assignment]


def task(constraint: Staircase, *ahead: int) -> tuple[MaskTask[Staircase], np.ndarray]:
    rows = np.zeros((len(ahead) + 1, 4), dtype=np.int32)
    return (constraint, ahead, rows.data), rows


def test_each_group_is_called_once_and_rows_keep_their_places() -> None:
    first, second = Group(), Group()
    pairs = [task(Member(first)), task(Staircase(), 7), task(Member(second), 7, 8), task(Member(first), 7, 9),
             task(Member(second))]  # fmt: skip
    assert write_masks([one for one, _ in pairs]) == [1, 2, 3, 2, 1]
    assert (first.num_tasks, second.num_tasks) == ([2], [2])
    for (constraint, ahead, _), rows in pairs:
        (wanted, out) = task(Staircase(), *ahead)
        constraint.write_masks(ahead, wanted[2])
        np.testing.assert_array_equal(rows, out)


def test_a_single_member_writes_its_own_masks() -> None:
    group = Group()
    assert write_masks([task(Member(group))[0], task(Staircase())[0]]) == [1, 1]
    assert not group.num_tasks


def test_an_error_of_a_group_propagates() -> None:
    class Failing(Group):
        def write_masks(self, tasks: Sequence[MaskTask[Staircase]]) -> list[int]:
            raise RuntimeError("broken")

    group = Failing()
    with pytest.raises(RuntimeError, match="broken"):
        write_masks([task(Member(group))[0], task(Member(group))[0]])


def test_no_tasks() -> None:
    assert write_masks([]) == []
