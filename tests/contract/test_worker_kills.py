"""A short run of `worker_kills.py`; 300 kills under 32 streams is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.worker_kills import Outcome, Stream, kill_and_compare

pytestmark = pytest.mark.contract


@pytest.mark.timeout(300)
async def test_six_kills_change_no_stream_and_no_charge(tmp_path: Path) -> None:
    figures = await kill_and_compare(tmp_path, num_kills=6, num_streams=12)
    assert figures["stream_faults"] == 0, figures["examples"]
    assert figures["ledger_faults"] == 0, figures["examples"]
    assert figures["continued"] >= 12


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
