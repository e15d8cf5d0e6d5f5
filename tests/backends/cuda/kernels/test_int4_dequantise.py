"""int4 weights equal their dequantised values."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.cuda.kernels.attention import RowTables
from quicksilver.backends.cuda.kernels.layer_fused import LayerFusedBuffers
from quicksilver.backends.cuda.kernels.rope_kernel import RowSlots
from tests.support import graph_checks as graphs
from tests.support import int4_checks as checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("depth", [32, 1056])
def test_dequantised_weights_equal_the_reference(depth: int) -> None:
    checks.check_dequantise(3, depth)


@pytest.mark.parametrize("has_canvas", [False, True])
@pytest.mark.parametrize("num_segments", [3, 14])
def test_a_network_on_int4_equals_its_dequantised_weights(num_segments: int, has_canvas: bool) -> None:
    checks.check_quantised("int4", graphs.TINIEST, num_segments, has_canvas)


def test_a_range_of_rows_keeps_its_place_in_attention() -> None:
    """Only the last range prefetches the keys of the next attention."""
    rows = buffers(64)
    first, last = rows.part(0, 32), rows.part(32, 64)
    assert rows.part(0, 64) is rows
    assert (rows.attention_rows, first.attention_rows, last.attention_rows) == (64, 64, 64)
    assert (first.tables.num_shared, last.tables.num_shared) == (0, 3)
    for name in ("stream", "norm_input", "qkv", "gate"):
        assert torch.equal(getattr(last, name), getattr(rows, name)[32:])
    assert torch.equal(last.where.slots, rows.where.slots[32:])
    assert torch.equal(last.tables.prefix_end, rows.tables.prefix_end[32:])
    assert last.splits[0].data_ptr() == rows.splits[0][0, 32].data_ptr()


def buffers(rows: int) -> LayerFusedBuffers:
    splits = (torch.zeros(4, rows, 2, 16), torch.zeros(4, rows, 2), torch.zeros(4, rows, 2))
    counts = torch.arange(rows).int()
    tables = RowTables(counts, counts, counts, torch.zeros(3 + rows, 3), torch.zeros(1, 1), 16, torch.zeros(rows, 2))
    wide = torch.randn(rows, 32)
    return LayerFusedBuffers(splits, wide, wide + 1, wide + 2, RowSlots(counts, counts + 1), counts % 2, tables)
