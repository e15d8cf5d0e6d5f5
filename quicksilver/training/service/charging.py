"""StepCharges: charges the steps of a fine-tuning job, each once, also where a run was killed and repeated."""

from __future__ import annotations

from collections.abc import Callable

from quicksilver.accounts.training_charges import TrainingCharges
from quicksilver.tuning.jobs import CHARGED, REFRESH_TOKENS, JobStore, TuningJob

# (first step, end) -> tokens of these steps.
CountTokens = Callable[[int, int], int]


class StepCharges:
    """Charges nothing without accounts. The steps of a canvas refresh follow those of the training."""

    def __init__(
        self,
        jobs: JobStore,
        charges: TrainingCharges | None,
        job: TuningJob,
        num_tokens: CountTokens,
        num_steps: int,
    ) -> None:
        self._jobs, self._charges, self._job = jobs, charges, job
        self._trained_tokens, self._num_steps = num_tokens, num_steps
        # Of each step of a refresh; set before the first one is charged.
        self.refresh_tokens = int(job.facts.get(REFRESH_TOKENS, 0))
        self._model = str(job.reply["model"])

    def check_balance(self) -> None:
        """Charges what a killed run had begun to charge. Raises if the budgets do not allow the steps that are left."""
        first, end = self._job.facts.get(CHARGED, (0, 0))
        self._charge(first, end)
        self._check(end, self._num_steps)

    def check_refresh(self, num_steps: int) -> None:
        """Raises if the budgets do not allow the steps of a refresh that are left."""
        _, end = self._job.facts.get(CHARGED, (0, 0))
        self._check(max(end, self._num_steps), self._num_steps + num_steps)

    def _check(self, first: int, end: int) -> None:
        if self._charges is not None and self._job.key_id is not None:
            self._charges.check(self._job.key_id, self._model, self._num_tokens(first, end))

    def _num_tokens(self, first: int, end: int) -> int:
        last = self._num_steps
        refreshed = self.refresh_tokens * max(0, end - max(first, last))
        return self._trained_tokens(min(first, last), min(end, last)) + refreshed

    def charge_refresh_until(self, step: int) -> None:
        """Charges the training, and all steps of a refresh before `step`, that were not charged yet."""
        self.charge_until(self._num_steps + step)

    def charge_until(self, step: int) -> None:
        """Charges all steps before `step` that were not charged yet."""
        if self._charges is not None and (span := self._jobs.begin_charge(self._job, step)) is not None:
            self._charge(*span)

    def _charge(self, first: int, end: int) -> None:
        """A second call for the same span does nothing."""
        if self._charges is not None and self._job.key_id is not None and end > first:
            part = f"{self._job.id}-steps-{first}-{end}"
            self._charges.charge(self._job.key_id, part, self._model, self._num_tokens(first, end))
