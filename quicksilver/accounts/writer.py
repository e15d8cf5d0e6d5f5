"""The thread that writes the ledger of a process. Entries that wait at the same time share one transaction.

The thread also writes the heartbeat, closes the reservations of dead processes, and retries every close that failed, so
that each reservation of a running process ends once the database is back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from sqlalchemy import Connection

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Checkpoint, Close, Entry, HandOver, How, Reserve
from quicksilver.accounts.idempotency import forget_old_replies
from quicksilver.accounts.ledger import Ledger, Outcome
from quicksilver.accounts.limits import forget_old_windows
from quicksilver.accounts.recovery import LivenessTracker, close_orphans, read_heartbeats, write_heartbeat
from quicksilver.accounts.store import Store
from quicksilver.errors import LedgerUnavailable, QuicksilverError

_log = logging.getLogger(__name__)
# After a batch has failed, entries that waited longer than this fail with it; younger ones are tried again.
_FRESH_S = 0.5
# Heartbeats between two removals of outdated rows.
_CLEANUP_EVERY = 60
# A transaction that takes longer than this makes the ledger count as not writable.
_SLOW_S = 2.0


@dataclass(frozen=True, slots=True)
class _Pending:
    """An entry in the queue and the future of its outcome."""

    entry: Entry
    outcome: Future[Any] = field(default_factory=Future)
    created_at: float = field(default_factory=time.monotonic)


class Writer:
    """Accepts entries from any thread. Their futures fail when the database does not answer within `lock_wait_s`."""

    def __init__(self, store: Store, ledger: Ledger, config: AccountsConfig) -> None:
        self._store = store
        self._ledger = ledger
        self._config = config
        self._queue: SimpleQueue[_Pending | None] = SimpleQueue()
        self._liveness = LivenessTracker(config.patience)
        # Closes that failed and are retried, and checkpoints that failed, by request id.
        self._owed: dict[str, Close] = {}
        self._checkpoints: dict[str, Checkpoint] = {}
        self._carried: list[_Pending] = []
        self._has_failed = False
        self._busy_since: float | None = None
        self._num_heartbeats = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="accounts-writer", daemon=True)

    def start(self) -> None:
        """Raises LedgerUnavailable if the ledger cannot be written."""
        self.tick()
        self._thread.start()

    @property
    def is_writable(self) -> bool:
        """Whether the last transaction succeeded and the current one, if any, is not slow."""
        busy_since = self._busy_since
        is_slow = busy_since is not None and time.monotonic() - busy_since > _SLOW_S
        return not (self._has_failed or is_slow or self._is_closed)

    def submit(self, entry: Entry) -> Future[Any]:
        item = _Pending(entry)
        if self._is_closed or self._store.is_broken:
            item.outcome.set_exception(LedgerUnavailable("the ledger is closed", retry_after_s=5.0))
        elif isinstance(entry, Close) and entry.how is How.SETTLE and entry.request_id in self._owed:
            # An earlier settle failed, so the answer was not delivered; the retry decides the charge.
            item.outcome.set_exception(LedgerUnavailable("the ledger is closing this request; send it again"))
        else:
            self._queue.put(item)
        return item.outcome

    def close(self) -> None:
        """Writes what is queued, closes the open reservations of this process and removes its heartbeat."""
        self._is_closed = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        late, _ = self._collect(0.0)
        self._fail(late, LedgerUnavailable("the ledger is closed", retry_after_s=5.0))
        self._retry_owed()
        try:
            while self._close_orphans(self._ledger.owner):
                pass
        except QuicksilverError:
            _log.warning("open reservations could not be closed; another process will close them")

    def tick(self) -> None:
        """One heartbeat: write it, retry failed closes, close the reservations of dead processes."""
        with self._transaction() as connection:
            write_heartbeat(connection, self._ledger.owner)
            heartbeats = read_heartbeats(connection)
            if self._num_heartbeats % _CLEANUP_EVERY == 0:
                forget_old_windows(connection, self._ledger.clock())
                forget_old_replies(connection, self._ledger.clock() - self._config.reply_kept_s)
        self._num_heartbeats += 1
        self._retry_owed()
        for owner in self._liveness.dead(heartbeats):
            if num_closed := self._close_orphans(owner):
                _log.warning("closed %d reservations of a dead process", num_closed)

    def _run(self) -> None:
        next_at = time.monotonic() + self._config.heartbeat_s
        is_last = False
        while not is_last:
            pending, is_last = self._collect(next_at - time.monotonic())
            if pending:
                self._commit(pending)
            if time.monotonic() >= next_at:
                self._try_tick()
                next_at = time.monotonic() + self._config.heartbeat_s

    def _collect(self, wait_s: float) -> tuple[list[_Pending], bool]:
        """Entries that wait now, or the first to arrive within `wait_s`; and whether the writer is closing."""
        pending, self._carried = self._carried, []
        try:
            item = self._queue.get(timeout=0.0 if pending else max(0.0, wait_s))
            while item is not None:
                if item.outcome.set_running_or_notify_cancel():
                    pending.append(item)
                if len(pending) >= self._config.batch_size:
                    return pending, False
                item = self._queue.get_nowait()
        except Empty:
            return pending, False
        return pending, True

    def _try_tick(self) -> None:
        try:
            self.tick()
        except LedgerUnavailable as error:
            self._fail_stale(error)
        except Exception as error:
            _log.error("a heartbeat failed: %s", type(error).__name__)

    def _commit(self, pending: Sequence[_Pending]) -> None:
        try:
            outcomes = self._write([item.entry for item in pending])
        except LedgerUnavailable as error:
            self._fail(pending, error)
            self._fail_stale(error)
        except Exception:
            self._isolate(pending)
        else:
            for item, outcome in zip(pending, outcomes, strict=True):
                self._deliver(item, outcome)

    def _write(self, entries: Sequence[Entry]) -> list[Outcome]:
        with self._transaction() as connection:
            return self._ledger.apply(connection, entries)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        self._busy_since = time.monotonic()
        try:
            with self._store.write() as connection:
                yield connection
        except LedgerUnavailable:
            self._has_failed = True
            raise
        finally:
            self._busy_since = None
        self._has_failed = False

    def _close_orphans(self, owner: str) -> int:
        with self._transaction() as connection:
            return close_orphans(connection, self._ledger, owner)

    def _isolate(self, pending: Sequence[_Pending]) -> None:
        """Writes each entry in its own transaction, so that one rejected entry does not fail the others."""
        for position, item in enumerate(pending):
            try:
                (outcome,) = self._write([item.entry])
            except LedgerUnavailable as error:
                self._fail(pending[position:], error)
                return
            except Exception as error:
                self._fail([item], error)
            else:
                self._deliver(item, outcome)

    def _fail_stale(self, error: LedgerUnavailable) -> None:
        """Fails entries that waited through the fault; later ones stay in the queue."""
        waiting: list[_Pending] = []
        is_last = False
        while not is_last and (found := self._collect(0.0)) != ([], False):
            waiting += found[0]
            is_last = found[1]
        if is_last:
            self._queue.put(None)
        now = time.monotonic()
        self._carried = [item for item in waiting if now - item.created_at < _FRESH_S]
        self._fail([item for item in waiting if now - item.created_at >= _FRESH_S], error)

    def _deliver(self, item: _Pending, outcome: Outcome) -> None:
        is_refused = isinstance(outcome, QuicksilverError)
        if isinstance(item.entry, Close) or (isinstance(item.entry, HandOver) and not is_refused):
            self._checkpoints.pop(item.entry.request_id, None)
        if isinstance(outcome, QuicksilverError):
            item.outcome.set_exception(outcome)
        else:
            item.outcome.set_result(outcome)

    def _fail(self, pending: Sequence[_Pending], error: Exception) -> None:
        for item in pending:
            self._note_failure(item.entry, error)
            item.outcome.set_exception(
                copy(error).with_traceback(None)
            )  # a shared traceback would grow with each raise

    def _note_failure(self, entry: Entry, error: Exception) -> None:
        """Notes what must be retried after a failure. A commit that raised may still have been written."""
        match entry:
            case Checkpoint():
                self._checkpoints[entry.request_id] = entry
            case Reserve() if isinstance(error, LedgerUnavailable):
                self._owed[entry.request_id] = Close(entry.request_id, How.RELEASE)
            case HandOver() if isinstance(error, LedgerUnavailable):
                # The request closes its first row itself.
                self._note_failure(entry.reserve, error)
            case Close(how=How.SETTLE):
                last = self._checkpoints.pop(entry.request_id, None)
                self._owed[entry.request_id] = Close(entry.request_id, How.ORPHAN, checkpoint=last)
            case Close():
                self._owed[entry.request_id] = entry

    def _retry_owed(self) -> None:
        owed = [self._owed.pop(request_id) for request_id in list(self._owed)[: self._config.batch_size]]
        if owed:
            self._commit([_Pending(entry) for entry in owed])
