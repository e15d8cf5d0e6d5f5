"""Weights of four bits against what they stand for."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.cuda.kernels.attention import RowTables
from quicksilver.backends.cuda.kernels.layer_fused import Buffers
from quicksilver.backends.cuda.kernels.rope_kernel import RowSlots
from quicksilver.backends.cuda.kernels.weights import SCHEMES, collect
from quicksilver.errors import InvalidRequest
from quicksilver.model.formats.weight_formats import CUDA_FORMATS
from tests.support import graph_checks as graphs
from tests.support import int4_checks as checks

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


def test_a_part_of_the_rows_keeps_its_place_in_attention() -> None:
    """The last part alone asks for the next attention's keys."""
    whole = buffers(64)
    first, last = whole.part(0, 32), whole.part(32, 64)
    assert whole.part(0, 64) is whole
    assert (whole.attended, first.attended, last.attended) == (64, 64, 64)
    assert (first.tables.num_shared, last.tables.num_shared) == (0, 3)
    for name in ("stream", "scaled", "qkv", "gate"):
        assert torch.equal(getattr(last, name), getattr(whole, name)[32:])
    assert torch.equal(last.where.slots, whole.where.slots[32:])
    assert torch.equal(last.tables.prefix_end, whole.tables.prefix_end[32:])
    assert last.splits[0].data_ptr() == whole.splits[0][0, 32].data_ptr()


def buffers(rows: int) -> Buffers:
    splits = (torch.zeros(4, rows, 2, 16), torch.zeros(4, rows, 2), torch.zeros(4, rows, 2))
    counts = torch.arange(rows).int()
    tables = RowTables(counts, counts, counts, torch.zeros(3 + rows, 3), torch.zeros(1, 1), 16, torch.zeros(rows, 2))
    wide = torch.randn(rows, 32)
    return Buffers(splits, wide, wide + 1, wide + 2, RowSlots(counts, counts + 1), counts % 2, tables)


def test_the_engine_knows_the_same_schemes() -> None:
    assert CUDA_FORMATS == SCHEMES


def test_a_scheme_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'int5' is not one of bfloat16, fp8, int4"):
        collect(graphs.model_of(graphs.TINIEST), "int5")
