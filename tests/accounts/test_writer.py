"""The writer: batches, faults, retries, recovery after dead processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event, select, text

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Checkpoint, Close, Entry, How, Reserve
from quicksilver.accounts.ledger import Ledger, Outcome
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import Charge, Order, Reservation, State
from quicksilver.accounts.schema import ledger, owners
from quicksilver.accounts.service import AdminService
from quicksilver.accounts.store import Store
from quicksilver.accounts.writer import Writer
from quicksilver.core import Usage
from quicksilver.errors import Conflict, LedgerUnavailable
from tests.accounts.conftest import Customer, FakeClock

PATIENT = 10.0


def reserve(customer: Customer, request_id: str) -> Reserve:
    return Reserve(customer.identity, Order(request_id, "nano", 1, 9))


def rows(admin: AdminService) -> dict[str, Any]:
    with admin.store.read() as connection:
        return {row.request_id: row for row in connection.execute(select(ledger))}


def make_writer(admin: AdminService, config: AccountsConfig, clock: FakeClock, owner: str = "proc_a") -> Writer:
    return Writer(admin.store, Ledger(owner, config.default_price, config.reply_kept_s, clock), config)


@contextmanager
def locked(admin: AdminService) -> Iterator[None]:
    """Somebody else holds what every ledger transaction needs."""
    if admin.store.is_sqlite:
        other = sqlite3.connect(str(admin.store.url.database), isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")
        other.close()
    else:
        store = Store(admin.store.url.render_as_string(hide_password=False))
        with store.write() as connection:
            connection.execute(text("LOCK TABLE accounts, ledger, owners IN ACCESS EXCLUSIVE MODE"))
            yield
        store.close()


@pytest.fixture
def writer(admin: AdminService, config: AccountsConfig, clock: FakeClock) -> Iterator[Writer]:
    writer = make_writer(admin, config, clock)
    yield writer
    writer.close()


def test_entries_that_wait_together_share_a_transaction(
    admin: AdminService, writer: Writer, customer: Customer
) -> None:
    commits: list[Connection] = []
    futures = [writer.submit(reserve(customer, f"r{number}")) for number in range(50)]
    event.listen(admin.store._writes, "commit", commits.append)
    writer.start()
    assert all(isinstance(future.result(PATIENT), Reservation) for future in futures)
    assert len(commits) < 10
    assert len(rows(admin)) == 50


def test_entry_that_the_database_rejects_fails_alone(admin: AdminService, writer: Writer, customer: Customer) -> None:
    first = writer.submit(reserve(customer, "taken"))
    writer.start()
    first.result(PATIENT)
    writer.close()
    again = make_writer(admin, writer._config, FakeClock(), "proc_b")
    futures = [again.submit(reserve(customer, name)) for name in ("one", "taken", "two")]
    again.start()
    assert isinstance(futures[1].exception(PATIENT), Conflict)
    assert isinstance(futures[0].result(PATIENT), Reservation)
    assert isinstance(futures[2].result(PATIENT), Reservation)
    again.close()
    assert audit(admin.store) == []


def test_locked_database_refuses_and_what_was_open_is_closed_later(
    admin: AdminService, writer: Writer, customer: Customer
) -> None:
    writer.start()
    for name in ("plain", "stream"):
        writer.submit(reserve(customer, name)).result(PATIENT)
    writer.submit(Checkpoint("stream", 2)).result(PATIENT)
    with locked(admin):
        failing = [
            writer.submit(reserve(customer, "late")),
            writer.submit(Checkpoint("stream", 5)),
            writer.submit(Close("plain", How.SETTLE, Usage(1, 0, 9))),
        ]
        assert all(isinstance(future.exception(PATIENT), LedgerUnavailable) for future in failing)
        last = writer.submit(Close("stream", How.SETTLE, Usage(1, 0, 9)))
        assert isinstance(last.exception(PATIENT), LedgerUnavailable)
    writer.close()
    found = rows(admin)
    assert set(found) == {"plain", "stream"}
    assert found["plain"].state == State.RELEASED
    assert (found["stream"].state, found["stream"].output_tokens) == (State.SETTLED, 5)
    assert audit(admin.store) == []


def test_a_locked_database_is_not_writable_until_it_is_free(admin: AdminService, writer: Writer) -> None:
    writer.start()
    assert writer.is_writable
    with locked(admin):
        while writer.is_writable:
            time.sleep(0.01)
    while not writer.is_writable:
        time.sleep(0.01)


def test_a_slow_transaction_is_not_writable(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quicksilver.accounts.writer._SLOW_S", 0.0)
    with writer._transaction():
        time.sleep(0.001)
        assert not writer.is_writable
    assert writer.is_writable


def test_settlement_that_failed_stays_failed(admin: AdminService, writer: Writer, customer: Customer) -> None:
    """The caller was told that its answer is not paid for, and so it was not delivered."""
    writer._config = replace(writer._config, heartbeat_s=PATIENT)
    writer.start()
    writer.submit(reserve(customer, "r")).result(PATIENT)
    settle = Close("r", How.SETTLE, Usage(1, 0, 9))
    with locked(admin):
        assert isinstance(writer.submit(settle).exception(PATIENT), LedgerUnavailable)
    assert isinstance(writer.submit(settle).exception(PATIENT), LedgerUnavailable)
    writer._retry_owed()
    assert isinstance(writer.submit(settle).exception(PATIENT), LedgerUnavailable)
    assert rows(admin)["r"].state == State.RELEASED


def test_failed_release_is_retried(admin: AdminService, writer: Writer, customer: Customer) -> None:
    writer.start()
    writer.submit(reserve(customer, "r")).result(PATIENT)
    writer.submit(Checkpoint("r", 3)).result(PATIENT)
    with locked(admin):
        assert isinstance(writer.submit(Close("r", How.RELEASE)).exception(PATIENT), LedgerUnavailable)
    writer.close()
    assert rows(admin)["r"].state == State.RELEASED


def test_reservation_whose_commit_was_not_acknowledged_is_released(
    admin: AdminService, writer: Writer, customer: Customer
) -> None:
    """The commit happens, but the answer to it does not arrive."""
    with admin.store.write() as connection:
        writer._ledger.apply(connection, [reserve(customer, "r")])
    writer._note_failure(reserve(customer, "r"), LedgerUnavailable("gone"))
    writer.tick()
    assert rows(admin)["r"].state == State.RELEASED


def test_entries_that_waited_through_a_fault_fail_with_it(
    admin: AdminService, writer: Writer, customer: Customer
) -> None:
    writer.start()
    with locked(admin):
        futures = [writer.submit(reserve(customer, f"r{number}")) for number in range(20)]
        assert all(isinstance(future.exception(PATIENT), LedgerUnavailable) for future in futures)
    assert isinstance(writer.submit(reserve(customer, "after")).result(PATIENT), Reservation)


def test_queue_longer_than_a_batch_fails_together_and_is_served_later(
    admin: AdminService, customer: Customer, config: AccountsConfig, clock: FakeClock
) -> None:
    writer = make_writer(admin, replace(config, batch_size=2), clock)
    writer.start()
    with locked(admin):
        futures = [writer.submit(reserve(customer, f"r{number}")) for number in range(9)]
        futures[8].cancel()
        assert all(isinstance(future.exception(PATIENT), LedgerUnavailable) for future in futures[:8])
    late = [writer.submit(reserve(customer, f"late{number}")) for number in range(5)]
    assert all(isinstance(future.result(PATIENT), Reservation) for future in late)
    writer.close()
    assert set(rows(admin)) == {f"late{number}" for number in range(5)}


def test_database_lost_while_writing_one_by_one_fails_the_rest(
    admin: AdminService, writer: Writer, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(entries: Sequence[Entry]) -> list[Outcome]:
        if len(entries) > 1:
            raise Conflict("one of them is bad")
        raise LedgerUnavailable("gone")

    monkeypatch.setattr(writer, "_write", write)
    futures = [writer.submit(reserve(customer, f"r{number}")) for number in range(3)]
    pending, _ = writer._collect(0.0)
    writer._commit(pending)
    assert all(isinstance(future.exception(PATIENT), LedgerUnavailable) for future in futures)
    assert len({id(future.exception()) for future in futures}) == 3


def test_close_during_a_fault_ends(admin: AdminService, writer: Writer, customer: Customer) -> None:
    writer.start()
    with locked(admin):
        future = writer.submit(reserve(customer, "r"))
        writer.close()
    assert isinstance(future.exception(PATIENT), LedgerUnavailable)


def test_close_settles_open_reservations_and_removes_the_heartbeat(
    admin: AdminService, writer: Writer, customer: Customer
) -> None:
    writer.start()
    for name in ("quiet", "streaming"):
        writer.submit(reserve(customer, name)).result(PATIENT)
    writer.submit(Checkpoint("streaming", 4))
    writer.close()
    found = rows(admin)
    assert (found["quiet"].state, found["streaming"].output_tokens) == (State.RELEASED, 4)
    with admin.store.read() as connection:
        assert connection.execute(select(owners)).all() == []
    assert isinstance(writer.submit(reserve(customer, "late")).exception(PATIENT), LedgerUnavailable)


def test_close_with_a_locked_database_leaves_open_rows_to_recovery(
    admin: AdminService, writer: Writer, customer: Customer, config: AccountsConfig, clock: FakeClock
) -> None:
    writer.start()
    writer.submit(reserve(customer, "r")).result(PATIENT)
    with locked(admin):
        writer.close()
    assert rows(admin)["r"].state == State.OPEN
    other = make_writer(admin, config, clock, "proc_b")
    for _ in range(config.patience + 1):
        other.tick()
    assert rows(admin)["r"].state == State.RELEASED
    other.close()


def test_reservations_of_dead_processes_alone_are_closed(
    admin: AdminService, config: AccountsConfig, clock: FakeClock, customer: Customer
) -> None:
    dead, alive, judge = (make_writer(admin, config, clock, name) for name in ("dead", "alive", "judge"))
    for process in (dead, alive):
        process.tick()
        with admin.store.write() as connection:
            process._ledger.apply(connection, [reserve(customer, process._ledger.owner)])
    for _ in range(config.patience + 2):
        judge.tick()
        alive.tick()
    assert {name: row.state for name, row in rows(admin).items()} == {"dead": State.RELEASED, "alive": State.OPEN}
    with admin.store.read() as connection:
        assert set(connection.execute(select(owners.c.id)).scalars()) == {"alive", "judge"}
    assert audit(admin.store) == []


def test_failed_reads_count_no_process_as_dead(
    admin: AdminService, config: AccountsConfig, clock: FakeClock, customer: Customer
) -> None:
    """While the database is locked no process can write its heartbeat, and none counts as dead for that."""
    alive, judge = make_writer(admin, config, clock, "alive"), make_writer(admin, config, clock, "judge")
    alive.tick()
    with admin.store.write() as connection:
        alive._ledger.apply(connection, [reserve(customer, "r")])
    judge.tick()
    with locked(admin):
        for _ in range(config.patience + 2):
            judge._try_tick()
    judge.tick()
    alive.tick()
    judge.tick()
    assert rows(admin)["r"].state == State.OPEN


def test_broken_disk_is_refused_at_once(admin: AdminService, writer: Writer, customer: Customer) -> None:
    writer.start()
    admin.store.is_broken = True
    assert isinstance(writer.submit(reserve(customer, "r")).exception(PATIENT), LedgerUnavailable)
    admin.store.is_broken = False


def test_heartbeat_continues_after_an_unexpected_error(
    admin: AdminService, writer: Writer, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(writer, "tick", explode)
    writer._try_tick()
    monkeypatch.undo()
    writer.start()
    assert isinstance(writer.submit(reserve(customer, "r")).result(PATIENT), Reservation)
    assert isinstance(writer.submit(Close("r", How.SETTLE, Usage(1, 0, 1))).result(PATIENT), Charge)
