"""Threads that run compiled code together: every piece is done once, and nobody waits for who has not begun."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from quicksilver.backends.cpu.support import refusal

if refusal() is not None:
    pytest.skip(f"compiled loops: {refusal()}", allow_module_level=True)

from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.threads import Place, Team
from quicksilver.backends.cpu.work_queue import finish, new_turns, num_pieces, share, take, wait

NUM_PHASES = 20


@inner
def work(turns, done):  # type: ignore[no-untyped-def]
    """Every piece of a phase adds one to what all pieces of the phase before left together."""
    for phase in range(1, len(done)):
        piece = take(turns, phase)
        while piece < done.shape[1]:
            done[phase, piece] += done[phase - 1].sum() + 1
            finish(turns, phase)
            piece = take(turns, phase)
        wait(turns, phase, done.shape[1])


def run(team: Team, num_pieces: int = 3) -> list[int]:
    turns, done = new_turns(NUM_PHASES), np.zeros((NUM_PHASES, num_pieces), np.int64)
    team.run(lambda _: work(turns, done))
    return done[-1].tolist()


def expected(num_pieces: int = 3) -> list[int]:
    value = 0
    for _ in range(1, NUM_PHASES):
        value = num_pieces * value + 1
    return [value] * num_pieces


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_piece_is_done_once_and_after_the_phase_before(num_threads: int) -> None:
    team = Team(num_threads)
    for _ in range(20):
        assert run(team) == expected()


def test_a_thread_that_never_comes_holds_nobody_up() -> None:
    team, gate = Team(2), threading.Event()
    team.run(lambda place: gate.wait() if place[0] else None)
    assert run(team) == expected()
    gate.set()
    assert run(team, 2) == expected(2)


def test_callers_at_the_same_time_do_not_lock_each_other_up() -> None:
    team, results = Team(3), list[list[int]]()

    def call() -> None:
        results.extend(run(team) for _ in range(10))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert results == [expected()] * 30


def test_a_place_names_thread_and_count() -> None:
    places: list[Place] = []
    Team(1).run(places.append)
    assert places == [(0, 1)]


@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_pieces_cover_everything_once(num_threads: int) -> None:
    for count in (0, 1, 3, 8, 100):
        pieces = num_pieces(count, num_threads)
        covered = [i for piece in range(pieces) for i in range(*share(count, piece, pieces))]
        assert covered == list(range(count))
