"""RoPE, head norms and the cache write."""

from __future__ import annotations

import pytest

from tests.support import kernel_checks as checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(("heads", "rows", "has_norm"), [((6, 2, 32), 16, False), ((4, 4, 32), 70, True)])
def test_rope_and_cache_write_equal_the_network(heads: tuple[int, int, int], rows: int, has_norm: bool) -> None:
    checks.check_rotate(0, heads, rows, has_norm)


@pytest.mark.parametrize("rows", [16, 70])
def test_dimensions_beyond_a_partial_rotation_are_kept(rows: int) -> None:
    checks.check_rotate(1, (4, 2, 32), rows, True, partial=0.5)
