"""Weights of four bits against what they stand for."""

from __future__ import annotations

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.model.kernels.weights import collect
from tests import four_checks as checks
from tests import graph_checks as graphs

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("depth", [32, 1056])
def test_weights_made_wide_are_what_they_stand_for(depth: int) -> None:
    checks.check_expand(3, depth)


@pytest.mark.parametrize("has_canvas", [False, True])
@pytest.mark.parametrize("num_segments", [3, 14])
def test_four_bits_equal_what_they_stand_for(num_segments: int, has_canvas: bool) -> None:
    checks.check_few_bits("int4", graphs.TINIEST, num_segments, has_canvas)


def test_bytes_of_a_network_count_groups() -> None:
    model = graphs.model_of(graphs.TINIEST)
    weights = collect(model, "int4")
    matrices = [linear for layer in weights.layers for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    numbers = sum(linear.w.numel() * 4 for linear in matrices)
    assert weights.num_bytes == numbers * 5 // 8 + weights.head.w.numel()


def test_a_scheme_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'int5' is not one of bfloat16, fp8, int4"):
        collect(graphs.model_of(graphs.TINIEST), "int5")
