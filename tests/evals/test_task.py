"""Records of tasks: forced prefixes, and means over items."""

from __future__ import annotations

import pytest

from quicksilver.core import ConstraintSpec
from quicksilver.evals.task import Generate, means


@pytest.mark.parametrize(("lead", "constraint"), [("", None), (" \n", None), ("def f", ConstraintSpec(lead="def f"))])
def test_only_a_prefix_with_text_is_forced(lead: str, constraint: ConstraintSpec | None) -> None:
    assert Generate((1,), lead=lead).constraint == constraint


def test_the_mean_of_a_metric_is_over_the_items_that_have_it() -> None:
    assert means([{"pass": 1.0}, {"pass": 0.0, "exact": 1.0}]) == {"pass": 0.5, "exact": 1.0}
    assert means([]) == {}
