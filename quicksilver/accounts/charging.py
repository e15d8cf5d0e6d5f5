"""The charging rule: which part of a request's usage is charged, given how the request ended.

Both functions are pure. The server reports an outcome, the usage so far and the tokens it delivered; the ledger applies
the same rule to rows whose process died. Prices and budgets are not decided here.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from quicksilver.core import Usage
from quicksilver.errors import LedgerUnavailable, QuicksilverError, RowFailed


class RequestOutcome(StrEnum):
    """How a paid request ended."""

    # The whole reply exists and is charged before its last byte is sent.
    COMPLETED = "completed"
    # The client disconnected, or the ledger could not be written.
    INTERRUPTED = "interrupted"
    # This request alone failed: its output does not satisfy its schema, its rows failed, its key was revoked.
    REQUEST_FAILED = "request_failed"
    # The server failed: no engine, an engine that died, an internal error.
    SERVER_FAILED = "server_failed"
    # The server process died; the last checkpoint is all that is known.
    ORPHANED = "orphaned"


def charge_for(outcome: RequestOutcome, usage: Usage, delivered: int | None) -> Usage | None:
    """The usage to charge; None means that the reservation is released and the request is free.

    `usage` is what the engine computed so far. `delivered` counts the tokens that were sent to the client one piece
    at a time, or that the last checkpoint recorded; None for a reply that is sent as a whole and for a row without a
    checkpoint.
    """
    if outcome is RequestOutcome.COMPLETED:
        return usage
    if outcome is RequestOutcome.SERVER_FAILED:
        return None
    if delivered:
        return replace(usage, completion_tokens=delivered)
    # A client that stops waiting for a whole reply has used the engine up to that point.
    is_abandoned = outcome is RequestOutcome.INTERRUPTED and delivered is None and usage.completion_tokens > 0
    return usage if is_abandoned else None


def outcome_of(error: BaseException | None) -> RequestOutcome:
    """The outcome of a request that ended with `error`; None or a cancellation where the client disconnected."""
    if not isinstance(error, Exception) or isinstance(error, LedgerUnavailable):
        return RequestOutcome.INTERRUPTED
    is_own_fault = isinstance(error, RowFailed) or (isinstance(error, QuicksilverError) and error.status < 500)
    return RequestOutcome.REQUEST_FAILED if is_own_fault else RequestOutcome.SERVER_FAILED
