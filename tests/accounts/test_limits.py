"""Sliding windows, compared with a plain list of timestamps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quicksilver.accounts.limits import Window, forget_old_windows, load_windows, save_windows, tightest
from quicksilver.accounts.records import Gauge, Limits
from quicksilver.accounts.service import AdminService
from tests.accounts.conftest import START, FakeClock


def admit(admin: AdminService, now: float, limit: int) -> float:
    """Take one request if it fits; returns the wait, 0 when admitted."""
    with admin.store.write() as connection:
        window = load_windows(connection, ["account"], now)["account"]
        wait_s = window.wait_s(0, limit - 1)
        if not wait_s:
            window.take((1, 0, 0))
            save_windows(connection, [("account", window)])
        return wait_s


def test_window_admits_exactly_the_limit_in_every_minute(admin: AdminService) -> None:
    admitted: list[float] = []
    for step in range(400):
        now = START + step * 0.7
        before = [moment for moment in admitted if int(moment) > int(now) - 60]
        wait_s = admit(admin, now, limit=7)
        assert (wait_s == 0) == (len(before) < 7)
        if not wait_s:
            admitted.append(now)
        else:
            assert wait_s == int(before[0]) + 60 - now
    assert len(admitted) == 7 * 5


@given(st.lists(st.integers(0, 200), min_size=1, max_size=60).map(sorted), st.integers(1, 6))
def test_window_equals_a_list_of_timestamps(seconds: list[int], limit: int) -> None:
    buckets: dict[int, tuple[int, int, int]] = {}
    taken: list[int] = []
    for second in seconds:
        window = Window(second)
        for old, amounts in buckets.items():
            if old > second - 60:
                window.put(old, amounts)
        recent = [moment for moment in taken if moment > second - 60]
        assert window.used(0) == len(recent)
        if window.wait_s(0, limit - 1) == 0:
            window.take((1, 0, 0))
            taken.append(second)
            buckets[second] = window.bucket(second)
        assert len(recent) <= limit


def test_waiting_for_retry_after_is_enough(admin: AdminService) -> None:
    assert admit(admin, START, 2) == 0
    assert admit(admin, START + 5, 2) == 0
    wait_s = admit(admin, START + 6.5, 2)
    assert wait_s == 53.5
    assert admit(admin, START + 6.5 + wait_s - 0.01, 2) > 0
    assert admit(admin, START + 6.5 + wait_s, 2) == 0


def test_large_request_waits_until_enough_buckets_expire() -> None:
    window = Window(START)
    for age, amount in ((50, 10), (40, 10), (30, 10)):
        window.put(int(START) - age, (1, amount, 0))
    assert window.wait_s(1, 30) == 0.0
    assert window.wait_s(1, 29) == 10.0
    assert window.wait_s(1, 15) == 20.0


def test_unused_amounts_are_returned_to_the_window() -> None:
    window = Window(START)
    window.take((1, 10, 100))
    window.give_back(int(START), (0, 4, 60))
    assert [window.used(which) for which in range(3)] == [1, 6, 40]
    window.give_back(int(START) - 70, (0, 5, 5))
    assert window.used(1) == 6


def test_clock_that_jumps_back_blocks_no_request(admin: AdminService) -> None:
    for _ in range(3):
        admit(admin, START + 86_400, 3)
    assert admit(admin, START + 86_400, 3) > 0
    assert admit(admin, START, 3) == 0


def test_buckets_ahead_by_a_small_skew_count(admin: AdminService) -> None:
    admit(admin, START + 30, 1)
    assert 0 < admit(admin, START, 1) <= 60


def test_old_windows_are_deleted(admin: AdminService, clock: FakeClock) -> None:
    admit(admin, START, 5)
    with admin.store.write() as connection:
        forget_old_windows(connection, START + 200)
        assert load_windows(connection, ["account"], START)["account"].used(0) == 0


def test_tightest_shows_the_account_with_the_least_remaining() -> None:
    wide, narrow = Window(START), Window(START)
    wide.take((1, 5, 5))
    narrow.take((1, 5, 5))
    state = tightest([(Limits(requests=100), wide), (Limits(requests=3, input_tokens=9), narrow)])
    assert state.requests == Gauge(3, 2, 60.0)
    assert state.input_tokens == Gauge(9, 4, 60.0)
    assert state.output_tokens == Gauge()
