"""Lease: renews the lease of one job from a thread, and signals the trainer when to wait and when to stop."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from quicksilver.errors import QuicksilverError
from quicksilver.tuning.jobs import LEASE_S, RENEW_S, JobStore, TuningJob

# Seconds between two checks of the engine while training waits for it.
WAIT_S = 0.05


class Interrupted(Exception):
    """The job was paused, cancelled or taken over, or this process stops. `is_held`: whether the lease is held."""

    def __init__(self, is_held: bool) -> None:
        super().__init__("interrupted")
        self.is_held = is_held


class Signals:
    """State set by the parent process: whether requests wait for the engine, and whether to stop."""

    def __init__(self) -> None:
        self.is_busy = threading.Event()
        self.is_stopping = threading.Event()


class Lease:
    """Use as a context manager while a job is worked on."""

    def __init__(self, jobs: JobStore, job: TuningJob, process: str, signals: Signals | None = None) -> None:
        self._jobs, self._job, self._process = jobs, job, process
        self._signals = signals or Signals()
        self._is_lost, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def hold(self) -> None:
        """Returns when training may continue: at once, or when no request waits. Raises Interrupted."""
        while True:
            if self._is_lost.is_set():
                raise Interrupted(is_held=False)
            if self._signals.is_stopping.is_set():
                raise Interrupted(is_held=True)
            if not self._signals.is_busy.is_set():
                return
            time.sleep(WAIT_S)

    def _renew(self) -> None:
        renewed = time.monotonic()
        while not self._is_over.wait(RENEW_S):
            try:
                is_held = self._jobs.renew(self._job, self._process)
            except QuicksilverError:
                # The database does not answer; another process may take over when the lease runs out.
                is_held = time.monotonic() - renewed < LEASE_S
            else:
                renewed = time.monotonic()
            if not is_held:
                self._is_lost.set()
                return
