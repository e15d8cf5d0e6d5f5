"""Engine settings that cannot work are refused where they are made, by name."""

from __future__ import annotations

import pytest

from quicksilver.engine.config import EngineConfig
from quicksilver.errors import InvalidRequest


@pytest.mark.parametrize(
    ("name", "value"),
    [("tree_rows", 7), ("tree_rows", 64), ("gpu_products", "slow"), ("page_size", 0)],
)
def test_a_setting_that_cannot_work_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name) as refused:
        EngineConfig(**{name: value})  # type: ignore[arg-type]
    assert refused.value.param == name


@pytest.mark.parametrize("rows", [-1, 0, 16, 32])
def test_trees_come_in_the_sizes_that_graphs_have(rows: int) -> None:
    assert EngineConfig(tree_rows=rows).tree_rows == rows
