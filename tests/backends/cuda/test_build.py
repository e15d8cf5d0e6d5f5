"""The round shapes that are captured at start."""

from __future__ import annotations

import pytest

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.config import BackendConfig
from quicksilver.backends.cuda.build import round_shapes
from quicksilver.backends.cuda.inflight import RoundShape


def test_without_a_canvas_only_autoregression_is_captured() -> None:
    assert round_shapes(BackendConfig(), is_small=False, has_canvas=False) == [RoundShape(1, 1)]


@pytest.mark.parametrize(("tree_rows", "is_small", "rows"), [(-1, True, 16), (-1, False, 32), (0, False, 0)])
def test_tree_rows_follow_the_setting_or_the_size_of_the_network(tree_rows: int, is_small: bool, rows: int) -> None:
    shapes = round_shapes(BackendConfig(tree_rows=tree_rows), is_small, has_canvas=True)
    assert shapes == [
        RoundShape(1, 1),
        RoundShape(1, 16, tree_rows=rows),
        RoundShape(2, 16, tree_rows=min(rows, 16)),
        RoundShape(4, 16, tree_rows=min(rows, 16)),
        RoundShape(1, 8),
    ]
