"""Chunks and phases: every chunk is done once, phases are in order, and late threads delay nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.jit import inner
from quicksilver.backends.cpu.threads import ThreadPool
from quicksilver.backends.cpu.work_queue import chunk_range, claim, complete, new_counters, num_chunks, wait_for

NUM_PHASES = 20


@inner
def work(counters, done, thread):  # type: ignore[no-untyped-def]
    """Every chunk adds one to the sum of all chunks of the phase before."""
    for phase in range(1, len(done)):
        chunk = claim(counters, phase, thread, done.shape[1])
        while chunk < done.shape[1]:
            done[phase, chunk] += done[phase - 1].sum() + 1
            complete(counters, phase)
            chunk = claim(counters, phase, thread, done.shape[1])
        wait_for(counters, phase, done.shape[1])


def run(pool: ThreadPool, count: int = 3) -> list[int]:
    counters, done = new_counters(NUM_PHASES, pool.num_threads), np.zeros((NUM_PHASES, count), np.int64)
    pool.run(lambda thread: work(counters, done, thread[0]))
    return done[-1].tolist()


def expected(count: int = 3) -> list[int]:
    value = 0
    for _ in range(1, NUM_PHASES):
        value = count * value + 1
    return [value] * count


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_chunk_is_done_once_and_after_the_phase_before(num_threads: int) -> None:
    pool = ThreadPool(num_threads)
    for _ in range(20):
        assert run(pool) == expected()


def test_a_thread_that_never_starts_delays_nothing() -> None:
    pool, gate = ThreadPool(2), threading.Event()
    pool.run(lambda index: gate.wait() if index[0] else None)
    assert run(pool) == expected()
    gate.set()
    assert run(pool, 2) == expected(2)


def test_concurrent_callers_do_not_deadlock() -> None:
    pool, results = ThreadPool(3), list[list[int]]()

    def call() -> None:
        results.extend(run(pool) for _ in range(10))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert results == [expected()] * 30


@inner
def claimed(counters, thread, chunks):  # type: ignore[no-untyped-def]
    return claim(counters, 0, thread, chunks)


def test_a_thread_claims_its_own_range_in_order_and_then_what_others_left() -> None:
    counters = new_counters(1, 2)
    assert [claimed(counters, 0, 5) for _ in range(2)] == [0, 1]
    assert [claimed(counters, 1, 5) for _ in range(2)] == [2, 3]
    assert [claimed(counters, 0, 5) for _ in range(2)] == [4, 5], "5: there is none left"
    assert claimed(counters, 1, 5) == 5


@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_chunks_cover_everything_once(num_threads: int) -> None:
    for count in (0, 1, 3, 8, 100):
        chunks = num_chunks(count, num_threads)
        covered = [i for chunk in range(chunks) for i in range(*chunk_range(count, chunk, chunks))]
        assert covered == list(range(count))
