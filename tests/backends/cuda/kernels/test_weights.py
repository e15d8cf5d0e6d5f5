"""Number formats of the kernels' weights."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda.kernels.weights import SCHEMES, collect
from quicksilver.errors import InvalidRequest
from tests.support import graph_checks as graphs


def test_num_bytes_includes_the_groups_of_int4() -> None:
    weights = collect(graphs.model_of(graphs.TINIEST), "int4")
    matrices = [linear for layer in weights.layers for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    num_weights = sum(linear.w.numel() * 4 for linear in matrices)
    assert weights.num_bytes == num_weights * 5 // 8 + weights.head.w.numel()


def test_an_unknown_scheme_is_refused_by_name() -> None:
    assert SCHEMES == ("bfloat16", "fp8", "int4")
    with pytest.raises(InvalidRequest, match="'int5' is not one of bfloat16, fp8, int4"):
        collect(graphs.model_of(graphs.TINIEST), "int5")
