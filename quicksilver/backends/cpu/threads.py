"""The threads that run compiled code together. They sleep between calls and share the work inside them.

Several callers may use one team. A job's parts never wait for a thread that has not begun, so none waits for another
in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue

import torch

Place = tuple[int, int]
"""Which thread of how many."""
Job = Callable[[Place], object]


class Team:
    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._inboxes: list[SimpleQueue[Job]] = [SimpleQueue() for _ in range(num_threads - 1)]
        for number, inbox in enumerate(self._inboxes, start=1):
            threading.Thread(target=self._serve, args=(number, inbox), name=f"loops-{number}", daemon=True).start()

    def run(self, job: Job) -> None:
        """`job(place)` on every thread. Returns when the calling thread's part is done, so a job whose results are read
        next waits for all its pieces; a thread that came too late for them may still be inside."""
        for inbox in self._inboxes:
            inbox.put(job)
        job((0, self.num_threads))

    def _serve(self, number: int, inbox: SimpleQueue[Job]) -> None:
        while True:
            inbox.get()((number, self.num_threads))


@cache
def current_team() -> Team:
    """As many threads as torch was told to use when the first model was made ready."""
    return Team(torch.get_num_threads())
