"""The work of a job, by which its time is estimated."""

from __future__ import annotations

import numpy as np
import pytest

from quicksilver.training.pack import Document
from quicksilver.training.service.examples import Example
from quicksilver.training.service.job_data import STEP, JobData
from quicksilver.training.service.tasks import StepPlan


@pytest.mark.parametrize(("method", "more"), [("supervised", 0.0), ("dpo", 1.0), ("kto", 3.0)])
def test_the_forwards_of_each_method_count(method: str, more: float) -> None:
    is_answer = np.arange(10) >= 4
    example = Example(Document(np.arange(10), is_answer, np.zeros_like(is_answer)))
    data = JobData([example] * 20, [], StepPlan(20, batch_size=4, num_epochs=2, seed=0), {}, method)
    assert data.work["train"] == pytest.approx((STEP + more) * 400)
