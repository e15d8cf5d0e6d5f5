"""Attention with windows, large heads and a scale of one equals masked attention in plain torch."""

from __future__ import annotations

import pytest

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from tests.support.gemma_checks import check_window_attention

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("heads", "window"), [((4, 2, 16), 0), ((4, 2, 16), 60), ((4, 1, 32), 0), ((16, 2, 512), 0), ((2, 2, 16), 1)]
)
def test_every_kind_of_row_equals_plain_torch(heads: tuple[int, int, int], window: int) -> None:
    check_window_attention(heads, window, seed=window)
