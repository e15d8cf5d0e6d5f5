"""The thread pool: every thread runs the task, and no caller waits for a thread that has not started."""

from __future__ import annotations

import threading

import pytest

from quicksilver.backends.cpu.support import unsupported_reason

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.threads import ThreadIndex, ThreadPool, shared_pool


def test_an_index_is_the_thread_and_the_count() -> None:
    found: list[ThreadIndex] = []
    ThreadPool(1).run(found.append)
    assert found == [(0, 1)]


def test_every_thread_runs_the_task() -> None:
    pool, found, all_inside = ThreadPool(4), list[ThreadIndex](), threading.Barrier(4)

    def task(index: ThreadIndex) -> None:
        found.append(index)
        all_inside.wait(timeout=60)

    pool.run(task)
    assert sorted(found) == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_run_returns_without_waiting_for_other_threads() -> None:
    pool, gate = ThreadPool(2), threading.Event()
    pool.run(lambda index: gate.wait() if index[0] else None)
    ran = list[int]()
    pool.run(lambda index: ran.append(index[0]))
    assert 0 in ran
    gate.set()


def test_the_process_has_one_shared_pool() -> None:
    assert shared_pool() is shared_pool()
