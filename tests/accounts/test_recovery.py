"""Telling the dead from the slow, and closing what the dead left."""

from __future__ import annotations

from sqlalchemy import select

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.entries import Checkpoint, Reserve
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.maintenance import check
from quicksilver.accounts.records import Order, State
from quicksilver.accounts.recovery import Lookout, beat, close_orphans, read_beats
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import Desk, open_desk
from tests.accounts.conftest import Customer, apply


def states(desk: Desk) -> dict[str, str]:
    with desk.store.read() as connection:
        return {row.request_id: row.state for row in connection.execute(select(ledger))}


def test_owner_is_dead_after_standing_still_for_its_patience() -> None:
    lookout = Lookout(patience=3)
    beats = [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 4}]
    assert [lookout.dead(look) for look in beats] == [[], [], [], ["a"]]
    assert lookout.dead({"a": 2, "b": 5}) == []


def test_owner_that_moves_between_looks_starts_afresh() -> None:
    lookout = Lookout(patience=2)
    assert [lookout.dead({"a": number}) for number in (1, 1, 2, 2)] == [[], [], [], []]
    assert lookout.dead({"a": 2}) == ["a"]


def test_beat_moves_and_comes_back_after_being_given_up(desk: Desk, books: Ledger) -> None:
    with desk.store.write() as connection:
        beat(connection, "me")
        beat(connection, "me")
        assert read_beats(connection) == {"me": 1}
        assert close_orphans(connection, books, "me") == 0
        assert read_beats(connection) == {}
        beat(connection, "me")
        assert read_beats(connection) == {"me": 0}


def test_looking_for_orphans_reads_open_rows_only(sqlite_url: str, config: AccountsConfig) -> None:
    desk = open_desk(sqlite_url, config)
    said: list[str] = []
    with desk.store.read() as connection:
        plain = connection.connection.driver_connection
        assert plain is not None
        plain.set_trace_callback(said.append)
        read_beats(connection)
        plain.set_trace_callback(None)
        plan = plain.execute(f"EXPLAIN QUERY PLAN {said[0]}").fetchall()
    desk.store.close()
    assert "ledger_open" in str(plan)


def test_orphans_of_one_owner_are_closed_and_others_left_alone(desk: Desk, books: Ledger, customer: Customer) -> None:
    other = Ledger("proc_b", books.default_price, books.reply_kept_s, books.clock)
    apply(desk, books, Reserve(customer.identity, Order("mine", "nano", 1, 9)))
    apply(desk, other, *(Reserve(customer.identity, Order(name, "nano", 1, 9)) for name in ("quiet", "streaming")))
    apply(desk, other, Checkpoint("streaming", 4))
    with desk.store.write() as connection:
        assert read_beats(connection) == {"proc_a": -1, "proc_b": -1}
        assert close_orphans(connection, books, "proc_b") == 2
    assert states(desk) == {"mine": State.OPEN, "quiet": State.RELEASED, "streaming": State.SETTLED}
    assert check(desk.store) == []
