"""What a job measures before and after training."""

from __future__ import annotations

import json

import pytest

from quicksilver.training.service import results
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
