"""The linears of a layer for small batches equal their separate steps."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda.kernels import linears
from tests.support import linear_checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
SMALL = linear_checks.LayerShape((192, 320), (4, 2, 32))
NARROW = linear_checks.LayerShape((96, 160), (2, 1, 64))


@pytest.mark.parametrize(("shape", "has_norms"), [(SMALL, False), (NARROW, True)])
def test_qkv_equals_its_steps(shape: linear_checks.LayerShape, has_norms: bool) -> None:
    linear_checks.check_qkv(0, shape, 16, has_norms)


@pytest.mark.parametrize("slice_rows", [4, 16])
def test_split_k_sums_of_qkv_are_reduced_in_slices(monkeypatch: pytest.MonkeyPatch, slice_rows: int) -> None:
    monkeypatch.setattr(linears, "slice_rows", lambda _: slice_rows)
    linear_checks.check_qkv(0, SMALL, 32, True)


@pytest.mark.parametrize("shape", [SMALL, NARROW])
def test_ffn_equals_its_steps(shape: linear_checks.LayerShape) -> None:
    linear_checks.check_ffn(0, shape, 16)


def test_a_row_is_the_same_in_batches_of_16_32_and_64() -> None:
    linear_checks.check_layer_is_batch_invariant(0, NARROW)
