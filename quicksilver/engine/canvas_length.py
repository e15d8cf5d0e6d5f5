"""How long the `verify` canvases of a step may be. No torch.

The length changes the number of tokens per round, never the tokens. It depends on the measured cost of forwards, on the
acceptance rate of recent drafts and on the number of running requests. Without measured costs, canvases are shortened
while requests wait: a long draft that is rejected costs rows that another request could use.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from quicksilver.backends.base import Sequence
from quicksilver.backends.round_cost import MAX_DRAFT_LEN, RoundCost
from quicksilver.core import DecoderName

# Acceptance rate assumed before any draft is verified, and the number of verified tokens with the same weight.
PRIOR_RATE, PRIOR_WEIGHT = 0.75, 4
# Factor by which a step reduces the weight of older verifications; 0.5 after 100 steps.
DECAY = 0.993
# Decay of the acceptance rates in a step of several requests without drafts. Nothing newer replaces these rates, and a
# faster return to the prior would start to draft again and again under load.
DECAY_WITHOUT_DRAFTS = 0.999
# Share of the rows of a forward for all canvases together, while requests wait and costs are not measured.
BACKLOG_SHARE = 0.25


class AcceptanceHistory:
    """Acceptance of recently drafted tokens of all requests, by their index in the draft."""

    def __init__(self) -> None:
        self._verified = [0.0] * MAX_DRAFT_LEN
        self._accepted = [0.0] * MAX_DRAFT_LEN

    def add(self, num_accepted: int, num_drafted: int) -> None:
        """One verification. Tokens after the first rejected one count as not verified."""
        for i in range(min(num_accepted + 1, num_drafted, MAX_DRAFT_LEN)):
            self._verified[i] += 1
            self._accepted[i] += i < num_accepted

    def decay(self, factor: float = DECAY) -> None:
        self._verified = [count * factor for count in self._verified]
        self._accepted = [count * factor for count in self._accepted]

    def prefix_acceptance(self) -> list[float]:
        """The probability that the first token of a draft is accepted, the first two, the first three and so on. With
        few verifications an index is assumed to have the rate of the index before it."""
        rate, product, found = PRIOR_RATE, 1.0, []
        for verified, accepted in zip(self._verified, self._accepted, strict=True):
            rate = (accepted + PRIOR_WEIGHT * rate) / (verified + PRIOR_WEIGHT)
            product *= rate
            found.append(product)
        return found


class CanvasLength:
    """`begin_step` once per step, then `limit` for each request. `observe` reports every verified draft."""

    def __init__(self, canvas_rows: int, round_cost: RoundCost | None, max_rows: int = 512) -> None:
        self.canvas_rows = canvas_rows
        self.max_rows = max_rows
        self.round_cost = round_cost
        self.history = AcceptanceHistory()
        self._is_verify_step = False
        self._has_verified = False  # since the last step
        self._best_len = 0
        self._best_for = -1  # number of running requests that `_best_len` was computed for

    def begin_step(self, running: Seq[Sequence]) -> None:
        if self.round_cost is None:
            return
        self.history.decay(DECAY if self._has_verified or len(running) <= 1 else DECAY_WITHOUT_DRAFTS)
        self._has_verified = False
        self._is_verify_step = _most_verify(running)
        self._best_len, self._best_for = self._best_len if running else 0, -1

    def observe(self, num_accepted: int, num_drafted: int) -> None:
        self.history.add(num_accepted, num_drafted)
        self._has_verified = True

    def limit(self, num_running: int, *, has_backlog: bool = False) -> int:
        """The longest canvas that a request may open now; 0 is no limit."""
        # In a verify step a request without a draft takes a plain step, and drafts together with the others in the
        # next one. So every second forward has no canvas rows, which makes it cheaper.
        limits = [1] if self._is_verify_step and num_running > 1 else []
        if self.round_cost is not None:
            limits.append(self._best(self.round_cost, num_running))
        elif has_backlog:
            limits.append(max(int(BACKLOG_SHARE * self.max_rows) // max(num_running, 1), 1))
        if self.canvas_rows:
            limits.append(max(self.canvas_rows // max(num_running, 1), 1))
        return min(limits, default=0)

    def _best(self, round_cost: RoundCost, num_running: int) -> int:
        """Computed once per step for each number of running requests."""
        if self._best_for != num_running:
            self._best_for = num_running
            self._best_len = round_cost.canvas_len(num_running, self.history.prefix_acceptance(), self._best_len)
        return self._best_len


def _most_verify(running: Seq[Sequence]) -> bool:
    """Whether at least as many requests have a draft to verify as would draft now."""
    drafting = verifying = 0
    for sequence in running:
        if sequence.request.params.decoder.name is DecoderName.VERIFY and not sequence.is_prefilling:
            has_draft = sequence.canvas is not None and sequence.canvas.is_draft
            verifying += has_draft
            drafting += not has_draft
    return verifying >= max(drafting, 1)
