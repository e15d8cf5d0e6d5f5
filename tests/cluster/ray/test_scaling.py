"""The number of replicas that the open requests ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quicksilver.cluster.ray.scaling import OPEN, num_replicas


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [({OPEN: {"a": 30.0, "b": 10.0}}, 2.5), ({OPEN: {"a": 0.0, "b": 0.0}}, 0.0), ({}, 2), (None, 2), ({OPEN: {}}, 2)],
)
def test_replicas_are_as_many_as_have_their_target_of_open_requests(metrics: Any, expected: float) -> None:
    """As many as now, before any replica has reported."""
    config = SimpleNamespace(get_target_ongoing_requests=lambda: 16.0)
    context = SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=2, config=config)
    assert num_replicas(context)[0] == expected
