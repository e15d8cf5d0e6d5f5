"""Detection of dead processes, and closing their reservations."""

from __future__ import annotations

from sqlalchemy import select

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Checkpoint, Reserve
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import Order, State
from quicksilver.accounts.recovery import LivenessTracker, close_orphans, read_heartbeats, write_heartbeat
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import AdminService, open_admin
from tests.accounts.conftest import Customer, apply


def states(admin: AdminService) -> dict[str, str]:
    with admin.store.read() as connection:
        return {row.request_id: row.state for row in connection.execute(select(ledger))}


def test_owner_is_dead_after_missing_heartbeats() -> None:
    tracker = LivenessTracker(patience=3)
    heartbeats = [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 4}]
    assert [tracker.dead(look) for look in heartbeats] == [[], [], [], ["a"]]
    assert tracker.dead({"a": 2, "b": 5}) == []


def test_owner_with_a_new_heartbeat_is_alive() -> None:
    tracker = LivenessTracker(patience=2)
    assert [tracker.dead({"a": number}) for number in (1, 1, 2, 2)] == [[], [], [], []]
    assert tracker.dead({"a": 2}) == ["a"]


def test_heartbeat_is_incremented_and_recreated(admin: AdminService, books: Ledger) -> None:
    with admin.store.write() as connection:
        write_heartbeat(connection, "me")
        write_heartbeat(connection, "me")
        assert read_heartbeats(connection) == {"me": 1}
        assert close_orphans(connection, books, "me") == 0
        assert read_heartbeats(connection) == {}
        write_heartbeat(connection, "me")
        assert read_heartbeats(connection) == {"me": 0}


def test_search_for_orphans_uses_the_index_of_open_rows(sqlite_url: str, config: AccountsConfig) -> None:
    admin = open_admin(sqlite_url, config)
    said: list[str] = []
    with admin.store.read() as connection:
        plain = connection.connection.driver_connection
        assert plain is not None
        plain.set_trace_callback(said.append)
        read_heartbeats(connection)
        plain.set_trace_callback(None)
        plan = plain.execute(f"EXPLAIN QUERY PLAN {said[0]}").fetchall()
    admin.store.close()
    assert "ledger_open" in str(plan)


def test_orphans_of_one_owner_are_closed_and_no_others(admin: AdminService, books: Ledger, customer: Customer) -> None:
    other = Ledger("proc_b", books.default_price, books.reply_kept_s, books.clock)
    apply(admin, books, Reserve(customer.identity, Order("mine", "nano", 1, 9)))
    apply(admin, other, *(Reserve(customer.identity, Order(name, "nano", 1, 9)) for name in ("quiet", "streaming")))
    apply(admin, other, Checkpoint("streaming", 4))
    with admin.store.write() as connection:
        assert read_heartbeats(connection) == {"proc_a": -1, "proc_b": -1}
        assert close_orphans(connection, books, "proc_b") == 2
    assert states(admin) == {"mine": State.OPEN, "quiet": State.RELEASED, "streaming": State.SETTLED}
    assert audit(admin.store) == []
