"""When a breaker opens, for how long, and what closes it."""

from __future__ import annotations

from quicksilver.server.breaker import Breaker, BreakerConfig, BreakerState


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, config: BreakerConfig = BreakerConfig()) -> Breaker:
    breaker = Breaker(config, clock)
    for _ in range(config.max_failures):
        breaker.begin()
        breaker.fail()
    return breaker


def test_opens_after_the_last_allowed_failure_only() -> None:
    breaker = Breaker(clock=Clock())
    for _ in range(4):
        breaker.fail()
        assert breaker.allows()
    breaker.fail()
    assert not breaker.allows()
    assert breaker.state is BreakerState.OPEN


def test_old_failures_do_not_count() -> None:
    clock = Clock()
    breaker = Breaker(clock=clock)
    for _ in range(20):
        breaker.fail()
        clock.now += 8
    assert breaker.allows()


def test_success_clears_failures() -> None:
    breaker = Breaker(clock=Clock())
    for _ in range(10):
        breaker.fail()
        breaker.succeed()
    assert breaker.state is BreakerState.CLOSED


def test_one_trial_after_the_pause_and_closed_by_its_success() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 4.9
    assert not breaker.allows()
    clock.now += 0.1
    assert breaker.allows()
    breaker.begin()
    assert breaker.state is BreakerState.HALF_OPEN
    assert not breaker.allows()
    breaker.succeed()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allows()


def test_failed_trials_double_the_pause_up_to_its_limit() -> None:
    clock = Clock()
    breaker = opened(clock)
    for pause_s in (5, 10, 20, 40, 60, 60):
        clock.now += pause_s - 0.1
        assert not breaker.allows()
        clock.now += 0.1
        assert breaker.allows()
        breaker.begin()
        breaker.fail()


def test_late_failures_of_earlier_requests_do_not_prolong_the_pause() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 4
    breaker.fail()
    clock.now += 1
    assert breaker.allows()


def test_cancelled_trial_lets_another_one_through() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 5
    breaker.begin()
    breaker.cancel()
    assert breaker.allows()


def test_a_failure_counts_within_the_window_only() -> None:
    clock = Clock()
    breaker = Breaker(BreakerConfig(3, window_s=10), clock)
    for pause_s in (0, 10, 0):
        clock.now += pause_s
        breaker.fail()
    assert breaker.allows()
    breaker.fail()
    assert not breaker.allows()


def test_a_pause_that_the_server_asks_for_begins_at_once_and_is_not_shortened() -> None:
    clock = Clock()
    breaker = Breaker(BreakerConfig(open_s=30, max_open_s=30), clock)
    breaker.fail(asked_pause_s=50)
    clock.now += 1
    breaker.fail(asked_pause_s=5)
    clock.now += 48
    assert not breaker.allows()
    clock.now += 1
    assert breaker.allows()
    breaker.begin()
    breaker.fail()
    clock.now += 29
    assert not breaker.allows()
    clock.now += 1
    assert breaker.allows()
