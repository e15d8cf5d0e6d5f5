"""Number formats of the kernels' weights."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.cuda.kernels.weights import SCHEMES, collect, free_matrices
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


def test_freed_matrices_do_not_change_the_quantised_copies_or_the_logits() -> None:
    for scheme in ("fp8", "int4"):
        model, given = graphs.model_of(graphs.TINIEST), torch.randn(2, graphs.TINIEST.dim)
        before, logits = collect(model, scheme), model.logits(given)
        copies = [layer.qkv.w.clone() for layer in before.layers]
        free_matrices(model)
        assert all(layer.qkv.weight.numel() == 0 for layer in model.layers)
        assert all(torch.equal(copy, layer.qkv.w) for copy, layer in zip(copies, before.layers, strict=True))
        assert torch.equal(model.logits(given), logits)
