"""One ledger row in memory: checkpoints, bounds of usage, and its final state."""

from __future__ import annotations

import pytest

from quicksilver.accounts.entries import Checkpoint, LedgerRow
from quicksilver.accounts.records import Price, State
from quicksilver.core import Usage


@pytest.fixture
def row() -> LedgerRow:
    return LedgerRow(
        request_id="r", path="o/p/k", key_id="k", model="nano", owner="proc", created_at=1,
        max_input=10, max_output=20, price=Price(10, 1, 100), reserved=2_100, is_rated=0, has_claim=0,
    )  # fmt: skip


def test_sent_tokens_never_fall(row: LedgerRow) -> None:
    for tokens in (5, 3, 7):
        row.advance(Checkpoint("r", tokens))
    assert row.wire_tokens == 7


def test_input_counts_as_cached_until_a_checkpoint_reports_its_count(row: LedgerRow) -> None:
    row.advance(Checkpoint("r", 5))
    assert row.wire_usage() == Usage(10, 10, 5)
    row.advance(Checkpoint("r", 6, cached_tokens=4))
    assert row.wire_usage() == Usage(10, 4, 6)


@pytest.mark.parametrize(
    ("usage", "bounded"),
    [
        (Usage(5, 2, 7), Usage(5, 2, 7)),
        (Usage(99, 99, 99), Usage(10, 10, 20)),
        (Usage(5, 9, -1), Usage(5, 5, 0)),
        (Usage(-1, 3, 3), Usage(0, 0, 3)),
    ],
)
def test_usage_is_limited_to_the_reservation(row: LedgerRow, usage: Usage, bounded: Usage) -> None:
    assert row.bounded(usage) == bounded


def test_a_closed_row_gives_its_charge(row: LedgerRow) -> None:
    assert row.is_open
    row.close(State.RELEASED, "request", 7.9)
    assert (row.closed_at, row.is_open) == (7, False)
    assert row.charge().cost == 0
