"""HybridJob: tries the targets of a route in order until one delivers the reply.

A leg is the attempt of one target. One that fails before the first byte is replaced by the next leg. A streamed reply
without a gate passes on pieces as they come; every other leg is read whole first, so that any failure can be replaced.
If no later target answers, the last answer that did not pass the gate is delivered.

At most one ledger row is open at a time. `HandOver` entries close the row of one leg and open that of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from quicksilver.accounts.records import SavedReply, StoredReply
from quicksilver.core import Usage
from quicksilver.errors import (
    AuthenticationFailed,
    Conflict,
    ContextTooLong,
    IdempotencyMismatch,
    InvalidRequest,
    LedgerUnavailable,
    PermissionDenied,
    QuicksilverError,
    TooManyInFlight,
)
from quicksilver.server.generation.billing import Billing
from quicksilver.server.generation.job import Job, Numbered
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.hybrid.gate import find_doubt
from quicksilver.server.hybrid.legs import Leg, LegOpener, LegOutcome, LegReport
from quicksilver.server.hybrid.policy import GateSettings
from quicksilver.server.hybrid.rules import CallRoute
from quicksilver.text.answer import Finished

# Refusals of the ledger that hold for every leg.
FINAL_REFUSALS = (AuthenticationFailed, Conflict, IdempotencyMismatch, LedgerUnavailable, TooManyInFlight)
EMPTY_PLAN = ReplyPlan("", "", 0, ())


class HybridJob(Job):
    def __init__(self, opener: LegOpener, route: CallRoute, *, is_streamed: bool) -> None:
        super().__init__(opener.billing(), is_streamed=is_streamed)
        self.reports = [LegReport(name, LegOutcome.SKIPPED, reason) for name, reason in route.skipped.items()]
        # The leg that delivers the reply; set once `start` has returned.
        self.leg: Leg | None = None
        self._opener = opener
        self._route = route
        self._is_streamed = is_streamed
        # The leg whose ledger row is open, and the usage that the row is charged for if the leg is over; None: nothing.
        self._row: Leg | None = None
        self._owed: Usage | None = None
        self._is_running = False
        self._is_counted = False

    @property
    def plan(self) -> ReplyPlan:
        return self.leg.plan if self.leg else EMPTY_PLAN

    @property
    def finished(self) -> Sequence[Finished]:
        return self.leg.job.finished if self.leg else ()

    @property
    def headers(self) -> Mapping[str, str]:
        """`x-quicksilver-route`: the rule, then each target with its outcome."""
        parts = [f"rule={self._route.rule}", *(f"{report.name}={report.outcome}" for report in self.reports)]
        return {"x-quicksilver-route": "; ".join(parts)}

    async def _begin(self) -> None:
        """Returns when the first piece of the reply is there. Raises the error of the last target if none answered."""
        best: Leg | None = None
        failure: QuicksilverError | None = None
        for name in self._route.targets:
            gate = self._route.gate if name != self._route.targets[-1] else None
            try:
                leg = await self._open(name, gate, best)
                if await self._answers(leg, gate):
                    self.leg = leg
                    return
                best = leg
            except QuicksilverError as error:
                if _is_final(error, has_answer=best is not None):
                    raise
                failure = error
                outcome = LegOutcome.SKIPPED if isinstance(error, PermissionDenied) else LegOutcome.FAILED
                self.reports.append(LegReport(name, outcome, error.message))
        if best is None:
            raise failure or InvalidRequest("no target can answer this request", param="model")
        self.leg = best
        self._is_running = self._row is best
        self._report_of(best).reason += "; no later target answered"
        self._report_of(best).outcome = LegOutcome.ANSWERED

    async def _open(self, name: str, gate: GateSettings | None, best: Leg | None) -> Leg:
        leg = await self._opener.open(name, gate, best.content if best and self._route.sends_draft else "")
        billing = self._opener.billing(leg.order)
        if billing is not None:
            await self._reserve(billing)
        self.billing, self._row, self._is_running = billing, leg, True
        return leg

    async def _reserve(self, billing: Billing) -> None:
        try:
            if self.billing is not None and self.billing.is_open:
                await billing.reserve_after(self.billing, self._owed)
            else:
                await billing.reserve()
        except InvalidRequest as refusal:
            # A limit that is too small for this target may suffice for another one.
            raise PermissionDenied(refusal.message, param=refusal.param) from None
        self._owed = None

    async def _answers(self, leg: Leg, gate: GateSettings | None) -> bool:
        """Whether the leg delivers the reply."""
        try:
            await leg.job.start()
            if gate is None and self._is_streamed:
                await leg.job.wait_for_first()
            else:
                await leg.fill()
            evidence = await self._opener.judge(leg, gate) if gate else None
        except QuicksilverError:
            self._is_running = False
            await leg.job.aclose()
            raise
        doubt = find_doubt(gate, evidence) if gate and evidence else None
        report = LegReport(leg.name, LegOutcome.ANSWERED, evidence=evidence)
        self.reports.append(report)
        if doubt is None:
            return True
        report.outcome, report.reason, report.usage = LegOutcome.ESCALATED, doubt, leg.job.usage()
        self._is_running, self._owed = False, leg.job.usage()
        await leg.job.aclose()
        return False

    def _report_of(self, leg: Leg) -> LegReport:
        return next(report for report in reversed(self.reports) if report.name == leg.name)

    async def next_piece(self) -> Numbered | None:
        return await self.leg.next_piece() if self.leg else None

    def usage(self) -> Usage:
        return self.leg.job.usage() if self.leg else Usage()

    def reported(self) -> list[LegReport]:
        """The legs with the counts of the delivered one; to be read after the last piece."""
        if self.leg is not None:
            self._report_of(self.leg).usage = self.usage()
        return self.reports

    def add_delivered(self, num_tokens: int) -> None:
        self._num_delivered = (self._num_delivered or 0) + num_tokens
        if self.billing is not None and self._is_running and self.leg is not None:
            self.billing.checkpoint(self.leg.job.usage_delivered(self._num_delivered))

    async def settle(self, reply: SavedReply | None = None, stored: StoredReply | None = None) -> None:
        if self.billing is not None:
            if self._num_delivered is not None:
                await self.billing.wait_until_writable()
            if self._row is self.leg:
                await self.billing.settle(self.usage(), reply, stored)
            else:
                await self.billing.release(reply, stored)
        if stored is not None and self.leg is not None:
            await self.leg.services.storage.keep(stored, is_written=self.billing is not None)

    async def aclose(self) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._opener.count(self.reports)
        for leg in {id(leg): leg for leg in (self.leg, self._row) if leg is not None}.values():
            await leg.job.aclose()
        if self.billing is None or self._row is None:
            return
        if self._is_running:
            await self.billing.close(self._error, self._row.job.usage(), self._num_delivered)
            return
        with suppress(LedgerUnavailable):
            # The row belongs to a leg that is over: an answer that was not delivered is charged, a failure is not.
            if self._owed is not None:
                await self.billing.settle(self._owed, None)
            else:
                await self.billing.release()


def _is_final(error: QuicksilverError, *, has_answer: bool) -> bool:
    """Whether no other target can help. A request that is invalid here is invalid everywhere, except that another model
    may have a longer context."""
    is_invalid = isinstance(error, InvalidRequest) and not isinstance(error, ContextTooLong)
    return isinstance(error, FINAL_REFUSALS) or (is_invalid and not has_answer)
