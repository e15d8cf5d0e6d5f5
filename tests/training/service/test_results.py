"""What a job measures before and after training."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from quicksilver.training.pack import Document
from quicksilver.training.service import results
from quicksilver.training.service.examples import Example
from quicksilver.training.service.measure import selectivity
from tests.support.tuning import Shop

SHORT = {"n_epochs": 2, "batch_size": 5, "rank": 4}


def test_few_suggestions_of_each_label_are_measured_on_a_cpu(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(results.NUM_MEASURED, "cpu", 8)
    rows = [{"prompt": f"{i}?", "completion": "yes" if i % 2 else "no", "label": i % 4 == 1} for i in range(24)]
    lines = b"\n".join(json.dumps(row).encode() for row in rows)
    job = shop.create(lines, "kto", hyperparameters=SHORT, validation=lines)
    shop.run()
    measured = shop.reply(job)["quicksilver"]["before"]["selectivity"]
    assert (measured["num"], measured["curve"][0]["accepted"]) == (8, 0.25)


def test_thresholds_are_log_probabilities_of_whole_answers() -> None:
    totals = [-1.0, -6.0, -2.0, -9.0]

    class Rows:
        def log_probs(self, documents: object, lora: object) -> torch.Tensor:
            return torch.tensor(totals)

    tokens = np.arange(8, dtype=np.int32)
    document = Document(tokens, tokens >= 3, np.zeros(8, bool))
    examples = [Example(document, label=i != 1) for i in range(4)]
    measured = selectivity(Rows(), examples, None)  # type: ignore[arg-type]
    assert [point["log_prob"] for point in (measured["curve"][0], measured["all_accepted"])] == [-9.0, -9.0]
    examples[3] = Example(document, label=False)
    kept = selectivity(Rows(), examples, None)["all_accepted"]  # type: ignore[arg-type]
    assert (kept["log_prob"], kept["shown"], kept["accepted_of_shown"]) == (-2.0, 0.5, 1.0)
