"""The breaker of an upstream, on a clock that the test moves."""

from __future__ import annotations

from quicksilver.server.hybrid.breaker import UpstreamBreaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[UpstreamBreaker, Clock]:
    clock = Clock()
    return UpstreamBreaker(3, window_s=10, open_s=30, clock=clock), clock


def fail(breaker: UpstreamBreaker, times: int = 1) -> None:
    for _ in range(times):
        assert breaker.begin()
        breaker.fail()


def test_it_opens_after_the_failures_of_one_window() -> None:
    breaker, clock = make()
    fail(breaker, 2)
    clock.now += 10
    fail(breaker, 2)
    assert not breaker.is_open
    fail(breaker)
    assert breaker.is_open
    assert not breaker.begin()


def test_a_success_resets_the_failures() -> None:
    breaker, _ = make()
    fail(breaker, 2)
    breaker.succeed()
    fail(breaker, 2)
    assert not breaker.is_open


def test_after_a_while_one_call_decides() -> None:
    breaker, clock = make()
    fail(breaker, 3)
    clock.now += 30
    assert breaker.begin()
    assert not breaker.begin(), "one call at a time"
    breaker.fail()
    assert breaker.is_open
    clock.now += 30
    assert breaker.begin()
    breaker.succeed()
    assert breaker.begin()
    assert breaker.begin()


def test_an_abandoned_trial_leaves_room_for_the_next_one() -> None:
    breaker, clock = make()
    fail(breaker, 3)
    clock.now += 30
    assert breaker.begin()
    breaker.abandon()
    assert breaker.begin()


def test_a_requested_wait_opens_at_once_and_is_bounded() -> None:
    breaker, clock = make()
    assert breaker.begin()
    breaker.fail(retry_after_s=5)
    assert breaker.is_open
    clock.now += 5
    assert breaker.begin()
    breaker.fail(retry_after_s=1e9)
    clock.now += 300
    assert breaker.begin()
