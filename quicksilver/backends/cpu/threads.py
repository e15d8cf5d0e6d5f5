"""A thread pool for compiled code: every thread runs the same task, and the task divides its work among them.

Threads sleep between tasks. Several callers may use one pool at the same time: a task never waits for a thread that
has not started it (see `work_queue`), so callers cannot deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue

import torch

# (number of this thread, number of threads)
ThreadIndex = tuple[int, int]
Task = Callable[[ThreadIndex], object]


class ThreadPool:
    """`num_threads` threads, of which the caller of `run` is number 0."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._inboxes: list[SimpleQueue[Task]] = [SimpleQueue() for _ in range(num_threads - 1)]
        for number, inbox in enumerate(self._inboxes, start=1):
            name = f"quicksilver-cpu-{number}"
            threading.Thread(target=self._serve, args=(number, inbox), name=name, daemon=True).start()

    def run(self, task: Task) -> None:
        """Call `task(index)` on every thread; return when the call on the calling thread returns.

        If the caller reads the results next, the task must wait until all chunks are complete. When `run` returns, a
        late thread may still be inside the task, but it has no chunk to process.
        """
        for inbox in self._inboxes:
            inbox.put(task)
        task((0, self.num_threads))

    def _serve(self, number: int, inbox: SimpleQueue[Task]) -> None:
        while True:
            inbox.get()((number, self.num_threads))


@cache
def shared_pool() -> ThreadPool:
    """The pool of this process. Its size is `torch.get_num_threads()` at the first call."""
    return ThreadPool(torch.get_num_threads())
