"""JobData: the examples of a fine-tuning job and their division into steps; JobJournal: the reports of its loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quicksilver.training.journal import Journal
from quicksilver.training.service.examples import Example
from quicksilver.training.service.tasks import StepPlan
from quicksilver.tuning.jobs import TuningJob

log = logging.getLogger("quicksilver.training")

# In tokens of a forward of the base: the answers that are decoded in a measurement, and a forward and backward with the
# LoRA of one token (nano on a CPU: 2.3).
DECODED, STEP = 3000.0, 2.5
# Further forwards of one training token: the reference, and for KTO also the pairs whose divergence is estimated, under
# both the policy and the reference.
MORE_FORWARDS = {"dpo": 1.0, "kto": 3.0}

Scalars = Mapping[str, float]
# A callback after each step: the job, the step, the number of steps, and the scalars of the step.
Watch = Callable[[TuningJob, int, int, Scalars], None]


@dataclass(frozen=True, slots=True)
class JobData:
    """The examples of a job, and how they are divided into steps."""

    train: list[Example]
    validation: list[Example]
    plan: StepPlan
    chosen: dict[str, Any]  # hyperparameters, with values in place of "auto"
    method: str

    @property
    def epoch_tokens(self) -> int:
        return sum(example.num_tokens for example in self.train)

    @property
    def work(self) -> dict[str, float]:
        """The approximate work of each stage for `TimeLeft`, in tokens of a forward."""
        measured = DECODED + sum(example.num_tokens for example in self.validation[:128])
        steps = self.forwards_per_token * self.epoch_tokens * self.plan.num_epochs
        return {"before": measured, "train": steps, "after": measured}

    @property
    def forwards_per_token(self) -> float:
        return STEP + MORE_FORWARDS.get(self.method, 0.0)

    def tokens_of_steps(self, first: int, end: int) -> int:
        return sum(self.train[i].num_tokens for step in range(first, end) for i in self.plan.indices(step))


class JobJournal(Journal):
    """Passes the reports of the loop on; nothing is printed."""

    def __init__(self, on_report: Callable[[int, Scalars], None]) -> None:
        self._on_report = on_report

    def print_line(self, text: str) -> None:
        log.debug("%s", text)

    def report(self, step: int, scalars: Scalars) -> None:
        self._on_report(step, scalars)
