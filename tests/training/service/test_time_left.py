"""The time that is left of a job: by the pace of a forward before the first step, then by that of the steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quicksilver.training.network import Network
from quicksilver.training.service.time_left import MAX_PROBES, PROBE_TOKENS, TimeLeft, probed_pace
from quicksilver.training.toy_task import tiny_model


def test_the_time_left_follows_the_pace_of_the_steps() -> None:
    told: list[tuple[str, float]] = []
    work = {"before": 10.0, "train": 100.0, "after": 10.0}
    left = TimeLeft(lambda text, seconds: told.append((text, seconds)), work, Network(tiny_model()))
    left.at("before", "measuring")
    left.at_step("train", "", 1, 4, {"loss": 2.0, "seconds": 5.0})
    left.at_step("train", "", 3, 4, {"loss": 1.5, "seconds": 30.0})
    left.at("after", "measuring again")
    left.add({"refresh": 40.0})
    left.at("refresh", "canvas refresh")
    left.at_step("refresh", "canvas refresh, ", 2, 2, {"loss": 1.0, "seconds": 9.0})
    texts, seconds = zip(*told, strict=True)
    assert texts == (
        "measuring",
        "step 1 of 4, loss 2.000",
        "step 3 of 4, loss 1.500",
        "measuring again",
        "canvas refresh",
        "canvas refresh, step 2 of 2, loss 1.000",
    )
    assert seconds[0] > 0
    # 25 of 100 took 5 s, so the other 75 and the 10 after them take 17; then 0.4 s for each token.
    assert seconds[1:] == pytest.approx((17.0, 14.0, 4.0, 16.0, 0.0))


def test_a_first_step_that_compiles_does_not_count_in_the_pace() -> None:
    told: list[float] = []
    work = {"train": 100.0, "refresh": 40.0}
    left = TimeLeft(lambda text, seconds: told.append(seconds), work, Network(tiny_model()), compiles=True)
    for step, seconds in ((1, 60.0), (2, 61.0), (10, 69.0)):
        left.at_step("train", "", step, 100, {"loss": 2.0, "seconds": seconds})
    left.at_step("refresh", "", 1, 4, {"loss": 2.0, "seconds": 50.0})
    assert told[0] < 5
    assert told[1:] == pytest.approx((98.0 + 40.0, 90.0 + 40.0, 30.0))


@pytest.mark.parametrize(
    ("times", "seconds"),
    # The beginning and the end of each forward: one long forward, or several short ones.
    [((5.0, 7.0), 2.0), ((5.0, 5.5, 5.75, 6.5), 0.5), ([5.0 + i / 16 for i in range(MAX_PROBES + 1)], 1 / 16)],
)
def test_the_first_pace_is_that_of_timed_forwards(times: Sequence[float], seconds: float) -> None:
    clock = iter(times)
    assert probed_pace(Network(tiny_model()), lambda: next(clock)) == pytest.approx(seconds / PROBE_TOKENS)
    assert not list(clock)
