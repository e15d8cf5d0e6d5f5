"""Rounds with draft trees emit the tokens of autoregression."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.model.config import ModelConfig
from tests.support.graph_checks import TINIEST, TINIEST_PLAIN
from tests.support.tree_checks import check_rounds_with_trees

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(("config", "tree_rows"), [(TINIEST_PLAIN, 8), (TINIEST, 12)], ids=["plain", "with QK norms"])
def test_rounds_with_trees_equal_autoregression(config: ModelConfig, tree_rows: int) -> None:
    with torch.inference_mode():
        check_rounds_with_trees(config, 6, RoundShape(1, 6, tree_rows=tree_rows), 20, 0.0)
