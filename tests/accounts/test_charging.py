"""The charging rule as a table: outcome, tokens generated, tokens delivered -> tokens charged, or nothing."""

from __future__ import annotations

import asyncio

import pytest

from quicksilver.accounts.charging import RequestOutcome, charge_for, outcome_of
from quicksilver.core import Usage
from quicksilver.errors import (
    AuthenticationFailed,
    EngineDied,
    EngineUnavailable,
    InvalidRequest,
    LedgerUnavailable,
    OutputInvalid,
    QuicksilverError,
    RowFailed,
)

COMPLETED, INTERRUPTED = RequestOutcome.COMPLETED, RequestOutcome.INTERRUPTED
REQUEST_FAILED, SERVER_FAILED = RequestOutcome.REQUEST_FAILED, RequestOutcome.SERVER_FAILED
ORPHANED = RequestOutcome.ORPHANED


@pytest.mark.parametrize(
    ("outcome", "generated", "delivered", "charged"),
    [
        (COMPLETED, 9, None, 9),
        (COMPLETED, 9, 7, 9),
        (COMPLETED, 0, 0, 0),
        (INTERRUPTED, 9, 7, 7),
        (INTERRUPTED, 9, 0, None),
        (INTERRUPTED, 0, None, None),
        (INTERRUPTED, 9, None, 9),
        (REQUEST_FAILED, 9, 7, 7),
        (REQUEST_FAILED, 9, 0, None),
        (REQUEST_FAILED, 9, None, None),
        (SERVER_FAILED, 9, 7, None),
        (SERVER_FAILED, 9, 0, None),
        (SERVER_FAILED, 9, None, None),
        (ORPHANED, 7, 7, 7),
        (ORPHANED, 0, 0, None),
        (ORPHANED, 0, None, None),
    ],
)
def test_charge_table(outcome: RequestOutcome, generated: int, delivered: int | None, charged: int | None) -> None:
    usage = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=generated)
    expected = None if charged is None else Usage(5, 2, charged)
    assert charge_for(outcome, usage, delivered) == expected


def test_every_outcome_is_in_the_table() -> None:
    table = test_charge_table.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {row[0] for row in table} == set(RequestOutcome)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, INTERRUPTED),
        (LedgerUnavailable("locked"), INTERRUPTED),
        (OutputInvalid("no integer"), REQUEST_FAILED),
        (RowFailed("non-finite numbers"), REQUEST_FAILED),
        (AuthenticationFailed("revoked"), REQUEST_FAILED),
        (InvalidRequest("too long"), REQUEST_FAILED),
        (EngineDied("gone"), SERVER_FAILED),
        (EngineUnavailable("starting"), SERVER_FAILED),
        (QuicksilverError("internal"), SERVER_FAILED),
        (KeyError("a bug"), SERVER_FAILED),
        (asyncio.CancelledError(), INTERRUPTED),
    ],
)
def test_outcome_of_an_error(error: BaseException | None, outcome: RequestOutcome) -> None:
    assert outcome_of(error) is outcome
