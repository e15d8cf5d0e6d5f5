"""A short run of `worker_kills.py`; 300 kills under 32 streams is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.worker_kills import Outcome, Plan, Stream, kill_and_compare

pytestmark = pytest.mark.contract


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plan", "least_continued"),
    [
        # Two streams per kill must have been interrupted, or one where there are few.
        (Plan(3, 12), 6),
        (Plan(2, 6, has_poison=True), 4),
        (Plan(2, 3, family="wedlm-7b"), 2),
        (Plan(2, 3, family="diffusion-gemma"), 2),
    ],
)
async def test_kills_change_no_stream_and_no_charge(tmp_path: Path, plan: Plan, least_continued: int) -> None:
    figures = await kill_and_compare(tmp_path, plan)
    assert figures["stream_faults"] == 0, figures["examples"]
    assert figures["ledger_faults"] == 0, figures["examples"]
    assert figures["continued"] >= least_continued
    assert (figures["poison_requests"] > 0) == plan.has_poison


def test_a_stream_that_differs_or_fails_is_a_fault() -> None:
    expected = Stream("a", "text", usage={"completion_tokens": 2}, is_done=True)
    others = (
        Stream("b", "text", usage={"completion_tokens": 2}, is_done=True),
        Stream("c", "texttext", usage={"completion_tokens": 2}, is_done=True),
        Stream("d", "text", usage={"completion_tokens": 2}),
        Stream("e", "text", usage={"completion_tokens": 2}, is_done=True, error="engine_died"),
    )
    outcome = Outcome()
    outcome.compare([expected] * 4, list(others))
    assert len(outcome.faults) == 3


def test_a_poison_request_that_does_not_fail_is_a_fault() -> None:
    outcome = Outcome()
    outcome.check_poison(Stream(error='{"code": "row_failed"}'))
    assert outcome.faults == []
    outcome.check_poison(Stream(is_done=True, finish="length"))
    outcome.check_poison(Stream(error='{"code": "internal_error"}'))
    assert len(outcome.faults) == 2


def test_an_answer_that_may_differ_must_have_valid_json() -> None:
    expected = Stream("a", '{"name": "x", "kinds": []}', is_done=True)
    outcome = Outcome()
    outcome.compare([expected], [Stream("b", '{"name": "y", "kinds": ["a"]}', is_done=True)], lambda number: True)
    outcome.compare(
        [expected], [Stream("c", calls='find{"name": "y", "kinds": []}', is_done=True)], lambda number: True
    )
    assert outcome.faults == []
    for content in ('{"name": "y"', '{"name": "y"}', ""):
        outcome.compare([expected], [Stream("d", content, is_done=True)], lambda number: True)
    assert len(outcome.faults) == 3
    assert not Plan(1, 6).may_differ(1)
    assert [Plan(1, 6, family="diffusion-gemma").may_differ(number) for number in range(3)] == [False, True, True]
