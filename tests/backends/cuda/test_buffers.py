"""Fixed buffers of graphs: bucket sizes, unused rows, attention tiles."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.buffers import RowBuffers, bucket_of
from tests.support.graph_checks import causal_batch


@pytest.mark.parametrize(("count", "bucket"), [(0, 16), (1, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_buckets_are_powers_of_two_from_16(count: int, bucket: int) -> None:
    assert bucket_of(count) == bucket


def test_unused_rows_of_a_bucket_have_no_slot_and_no_tile() -> None:
    pages = torch.zeros(4, 8, dtype=torch.int32)
    buffers = RowBuffers(16, 6, (pages, pages.clone()), 16)
    batch = causal_batch(2, 5, 20, 16)
    buffers.fill(causal_batch(3, 5, 20, 16), 4)
    buffers.fill(batch, 4)
    slots, tiles = buffers.inputs.where.slots.tolist(), buffers.inputs.tables.tiles.tolist()
    assert slots == [*batch.plan.slots.tolist(), *[-1] * 6]
    assert tiles == [[0, 0, 4], [0, 4, 5], [1, 5, 9], [1, 9, 10], [0, 0, 0], [0, 0, 0]]
    assert len(buffers.first_tiles(2).tables.tiles) == 2
