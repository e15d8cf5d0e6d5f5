"""Threads that run compiled code together: every part runs, and callers at the same time do not lock each other up."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from quicksilver.model.native.support import refusal

if refusal() is not None:
    pytest.skip(f"compiled loops: {refusal()}", allow_module_level=True)

from quicksilver.model.native.compiled import inner
from quicksilver.model.native.scalar import address_of, meet
from quicksilver.model.native.team import Place, Team


@inner
def count(counters, seen, place):  # type: ignore[no-untyped-def]
    """Every thread counts itself, meets the others twice, and sees that all had counted."""
    for _ in range(2):
        seen[place[0], 0] += 1
        meet(address_of(counters), place[1])
        for thread in range(place[1]):
            seen[place[0], 1] += seen[thread, 0]
        meet(address_of(counters), place[1])


def run(team: Team) -> list[int]:
    counters, seen = np.zeros(16, np.int64), np.zeros((team.num_threads, 2), np.int64)
    team.run(lambda place: count(counters, seen, place))
    return seen[:, 1].tolist()


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_threads_meet(num_threads: int) -> None:
    team = Team(num_threads)
    for _ in range(20):
        assert run(team) == [3 * num_threads] * num_threads


def test_callers_at_the_same_time_do_not_lock_each_other_up() -> None:
    team, results = Team(3), list[list[int]]()

    def call() -> None:
        results.extend(run(team) for _ in range(10))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert results == [[9, 9, 9]] * 30


def test_a_place_names_thread_and_count() -> None:
    places: list[Place] = []
    Team(1).run(places.append)
    assert places == [(0, 1)]
