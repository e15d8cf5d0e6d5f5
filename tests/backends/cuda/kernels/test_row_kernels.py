"""Row-wise kernels against plain torch."""

from __future__ import annotations

import pytest

from tests.support import kernel_checks as checks
from tests.support import linear_checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def test_row_kernels_equal_torch() -> None:
    checks.check_rows(0, 96)


def test_a_canvas_longer_than_the_mask_table_repeats_its_last_embedding() -> None:
    linear_checks.check_embed_clamps_masks()
