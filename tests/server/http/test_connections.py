from __future__ import annotations

import resource

import pytest

from quicksilver.server.http.connections import OTHER_FILES, ConnectionTable, usable_connections


class FakeConnection:
    def __init__(self, *, is_idle: bool = True) -> None:
        self.is_idle = is_idle
        self.was_evicted = False

    def evict(self) -> None:
        self.was_evicted = True


def test_the_oldest_idle_connection_without_a_key_is_displaced() -> None:
    table = ConnectionTable(4)
    trusted, busy, first, second = (FakeConnection(is_idle=i != 1) for i in range(4))
    assert all(table.add(each) for each in (trusted, busy, first, second))
    table.trust(trusted)
    assert table.add(FakeConnection())
    assert [each.was_evicted for each in (trusted, busy, first, second)] == [False, False, True, False]
    assert len(table) == 4


def test_a_connection_is_refused_where_none_can_be_displaced() -> None:
    table = ConnectionTable(2)
    trusted, busy = FakeConnection(), FakeConnection(is_idle=False)
    assert table.add(trusted)
    assert table.add(busy)
    table.trust(trusted)
    assert not table.add(FakeConnection())
    table.remove(trusted)
    table.remove(trusted)
    assert table.add(FakeConnection())


def test_the_bound_is_lowered_to_the_files_that_the_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.__setitem__(slice(None), pair))
    assert usable_connections(2000) == 2000
    assert limits == [2000 + OTHER_FILES, 4096]
    assert usable_connections(8192) == 4096 - OTHER_FILES
    assert limits == [4096, 4096]
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    assert usable_connections(8192) == 8192
