"""The one thread of a process that writes the ledger. Entries that wait together are committed together.

It also beats, sweeps after dead processes, and keeps trying to close what could not be closed when it was asked to:
a reservation of a living process always ends, however long the database was away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Checkpoint, Close, Entry, How, Reserve
from quicksilver.accounts.idempotency import forget_old_replies
from quicksilver.accounts.ledger import Ledger, Outcome
from quicksilver.accounts.limits import forget_old_windows
from quicksilver.accounts.recovery import Lookout, beat, close_orphans, read_beats
from quicksilver.accounts.store import Store
from quicksilver.errors import LedgerUnavailable, QuicksilverError

_log = logging.getLogger(__name__)
_FRESH_S = 0.5
"""An entry that waited longer than this behind a failed batch has waited for the same fault, and fails with it."""
_TIDY_EVERY = 60
"""Heartbeats between two removals of outdated rows."""


@dataclass(frozen=True, slots=True)
class _Slip:
    """An entry on its way, and the promise of its outcome."""

    entry: Entry
    outcome: Future[Any] = field(default_factory=Future)
    born: float = field(default_factory=time.monotonic)


class Writer:
    """Takes entries from any thread; the futures it returns never wait longer than the database is waited for."""

    def __init__(self, store: Store, books: Ledger, config: AccountsConfig) -> None:
        self._store = store
        self._books = books
        self._config = config
        self._queue: SimpleQueue[_Slip | None] = SimpleQueue()
        self._lookout = Lookout(config.patience)
        self._owed: dict[str, Close] = {}
        self._marks: dict[str, Checkpoint] = {}
        self._carried: list[_Slip] = []
        self._beats = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="accounts-writer", daemon=True)

    def start(self) -> None:
        """Raises at once when the books cannot be written."""
        self.tick()
        self._thread.start()

    def submit(self, entry: Entry) -> Future[Any]:
        slip = _Slip(entry)
        if self._is_closed or self._store.is_broken:
            slip.outcome.set_exception(LedgerUnavailable("the books are closed", retry_after_s=5.0))
        elif isinstance(entry, Close) and entry.how is How.SETTLE and entry.request_id in self._owed:
            # Its caller has been told that this failed, and has not delivered the answer.
            slip.outcome.set_exception(LedgerUnavailable("the books are closing this request; send it again"))
        else:
            self._queue.put(slip)
        return slip.outcome

    def close(self) -> None:
        """Finish what is queued, close what this process still holds open, and sign off."""
        self._is_closed = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        late, _ = self._collect(0.0)
        self._fail(late, LedgerUnavailable("the books are closed", retry_after_s=5.0))
        self._pay_owed()
        try:
            while self._sweep(self._books.owner):
                pass
        except QuicksilverError:
            _log.warning("the books could not be closed cleanly; the next process will sweep")

    def tick(self) -> None:
        """One heartbeat: show life, pay what is owed, look after the others."""
        with self._store.write() as connection:
            beat(connection, self._books.owner)
            beats = read_beats(connection)
            if self._beats % _TIDY_EVERY == 0:
                forget_old_windows(connection, self._books.clock())
                forget_old_replies(connection, self._books.clock() - self._config.reply_kept_s)
        self._beats += 1
        self._pay_owed()
        for owner in self._lookout.dead(beats):
            if num_closed := self._sweep(owner):
                _log.warning("closed %d reservations of a process that is gone", num_closed)

    def _run(self) -> None:
        due = time.monotonic() + self._config.heartbeat_s
        is_last = False
        while not is_last:
            slips, is_last = self._collect(due - time.monotonic())
            if slips:
                self._commit(slips)
            if time.monotonic() >= due:
                self._try_tick()
                due = time.monotonic() + self._config.heartbeat_s

    def _collect(self, wait_s: float) -> tuple[list[_Slip], bool]:
        """What waits now, or the first to come within `wait_s`; and whether it is the last there will be."""
        slips, self._carried = self._carried, []
        try:
            slip = self._queue.get(timeout=0.0 if slips else max(0.0, wait_s))
            while slip is not None:
                if slip.outcome.set_running_or_notify_cancel():
                    slips.append(slip)
                if len(slips) >= self._config.batch_size:
                    return slips, False
                slip = self._queue.get_nowait()
        except Empty:
            return slips, False
        return slips, True

    def _try_tick(self) -> None:
        try:
            self.tick()
        except LedgerUnavailable as error:
            self._fail_stale(error)
        except Exception as error:
            _log.error("a heartbeat failed: %s", type(error).__name__)

    def _commit(self, slips: Sequence[_Slip]) -> None:
        try:
            outcomes = self._write([slip.entry for slip in slips])
        except LedgerUnavailable as error:
            self._fail(slips, error)
            self._fail_stale(error)
        except Exception:
            self._isolate(slips)
        else:
            for slip, outcome in zip(slips, outcomes, strict=True):
                self._deliver(slip, outcome)

    def _write(self, entries: Sequence[Entry]) -> list[Outcome]:
        with self._store.write() as connection:
            return self._books.apply(connection, entries)

    def _sweep(self, owner: str) -> int:
        with self._store.write() as connection:
            return close_orphans(connection, self._books, owner)

    def _isolate(self, slips: Sequence[_Slip]) -> None:
        """An entry that the database rejects must not fail its neighbours: write each alone."""
        for position, slip in enumerate(slips):
            try:
                (outcome,) = self._write([slip.entry])
            except LedgerUnavailable as error:
                self._fail(slips[position:], error)
                return
            except Exception as error:
                self._fail([slip], error)
            else:
                self._deliver(slip, outcome)

    def _fail_stale(self, error: LedgerUnavailable) -> None:
        """Fail what has queued behind a fault for long; what came late gets its own try."""
        waiting: list[_Slip] = []
        is_last = False
        while not is_last and (found := self._collect(0.0)) != ([], False):
            waiting += found[0]
            is_last = found[1]
        if is_last:
            self._queue.put(None)
        now = time.monotonic()
        self._carried = [slip for slip in waiting if now - slip.born < _FRESH_S]
        self._fail([slip for slip in waiting if now - slip.born >= _FRESH_S], error)

    def _deliver(self, slip: _Slip, outcome: Outcome) -> None:
        if isinstance(slip.entry, Close):
            self._marks.pop(slip.entry.request_id, None)
        if isinstance(outcome, QuicksilverError):
            slip.outcome.set_exception(outcome)
        else:
            slip.outcome.set_result(outcome)

    def _fail(self, slips: Sequence[_Slip], error: Exception) -> None:
        for slip in slips:
            self._remember(slip.entry, error)
            slip.outcome.set_exception(copy(error).with_traceback(None))  # tracebacks grow where it is raised

    def _remember(self, entry: Entry, error: Exception) -> None:
        """Keep what a failed entry obliges us to. A commit that failed for want of the disk may have happened."""
        match entry:
            case Checkpoint():
                self._marks[entry.request_id] = entry
            case Reserve() if isinstance(error, LedgerUnavailable):
                self._owed[entry.request_id] = Close(entry.request_id, How.RELEASE)
            case Close(how=How.SETTLE):
                mark = self._marks.pop(entry.request_id, None)
                self._owed[entry.request_id] = Close(entry.request_id, How.ORPHAN, mark=mark)
            case Close():
                self._owed[entry.request_id] = entry

    def _pay_owed(self) -> None:
        owed = [self._owed.pop(request_id) for request_id in list(self._owed)[: self._config.batch_size]]
        if owed:
            self._commit([_Slip(entry) for entry in owed])
