"""Cost of answers: sums and ratios."""

from __future__ import annotations

from quicksilver.core import FinishReason, Usage
from quicksilver.evals.speed import Speed, speed_of, total
from quicksilver.evals.task import Answer


def test_the_stop_token_counts_as_a_token_of_its_forward() -> None:
    usage = Usage(prompt_tokens=5, cached_tokens=0, completion_tokens=9, forwards=4, drafted=8, accepted=6, rounds=2)
    speed = speed_of(Answer("text", finish=FinishReason.STOP, usage=usage))
    assert (speed.tokens, speed.tokens_per_forward, speed.tokens_per_round, speed.acceptance) == (10, 2.5, 5.0, 0.75)
    assert speed_of(Answer("text", finish=FinishReason.LENGTH, usage=usage)).tokens == 9


def test_answers_without_usage_cost_nothing_and_ratios_need_a_divisor() -> None:
    assert speed_of(Answer("cut by a stop string")) == Speed()
    assert (Speed().tokens_per_forward, Speed().tokens_per_round, Speed().acceptance) == (None, None, None)


def test_totals_add_every_field() -> None:
    assert total([Speed(1, 2, 3, 4, 5, 6, 7), Speed(1, 1, 1, 1, 1, 1, 1)]) == Speed(2, 3, 4, 5, 6, 7, 8)
