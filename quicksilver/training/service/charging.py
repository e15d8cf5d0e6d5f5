"""StepCharges: charges the steps of a fine-tuning job, each once, also where a run was killed and repeated."""

from __future__ import annotations

from collections.abc import Callable

from quicksilver.accounts.training_charges import TrainingCharges
from quicksilver.tuning.jobs import CHARGED, JobStore, TuningJob

# (first step, end) -> tokens of these steps.
CountTokens = Callable[[int, int], int]


class StepCharges:
    """Charges nothing without accounts."""

    def __init__(
        self, jobs: JobStore, charges: TrainingCharges | None, job: TuningJob, num_tokens: CountTokens
    ) -> None:
        self._jobs, self._charges, self._job, self._num_tokens = jobs, charges, job, num_tokens
        self._model = str(job.reply["model"])

    def check_balance(self, num_steps: int) -> None:
        """Charges what a killed run had begun to charge. Raises if the budgets do not allow the steps that are left."""
        first, end = self._job.facts.get(CHARGED, (0, 0))
        self._charge(first, end)
        if self._charges is not None and self._job.key_id is not None:
            self._charges.check(self._job.key_id, self._model, self._num_tokens(end, num_steps))

    def charge_until(self, step: int) -> None:
        """Charges all steps before `step` that were not charged yet."""
        if self._charges is not None and (span := self._jobs.begin_charge(self._job, step)) is not None:
            self._charge(*span)

    def _charge(self, first: int, end: int) -> None:
        """A second call for the same span does nothing."""
        if self._charges is not None and self._job.key_id is not None and end > first:
            part = f"{self._job.id}-steps-{first}-{end}"
            self._charges.charge(self._job.key_id, part, self._model, self._num_tokens(first, end))
