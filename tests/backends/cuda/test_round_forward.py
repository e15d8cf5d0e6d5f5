"""The fixed row layout of a round's forwards."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.backends.cuda.round_forward import RoundForward
from quicksilver.model.attention import PagedCache
from tests.support.graph_checks import TINIEST, model_of
from tests.support.kernel_checks import here
from tests.support.tiny import decode_params


@pytest.fixture
def executor() -> GraphExecutor:
    place = here()
    cache = PagedCache.allocate(TINIEST, 8, 16, place.device, place.dtype, 32)
    return GraphExecutor(model_of(TINIEST), cache, 64, GraphLimits(max_rows=32, max_segments=4, context_len=64))


def forward_of(executor: GraphExecutor, shape: RoundShape) -> RoundForward:
    pages = torch.zeros(shape.num_sequences, 4, dtype=torch.int32)
    return RoundForward(executor, shape, (pages, pages.to(executor.device)))


def test_every_sequence_has_its_own_attention_tile(executor: GraphExecutor) -> None:
    forward = forward_of(executor, RoundShape(2, 4))
    assert forward.rows.inputs.tables.tiles.tolist() == [[0, 0, 4], [1, 4, 8]]
    assert forward.head.ints[0].tolist()[:8] == list(range(8))


def test_a_tree_adds_one_tile_per_row(executor: GraphExecutor) -> None:
    tables = forward_of(executor, RoundShape(2, 4, tree_rows=8)).rows.inputs.tables
    assert tables.num_shared == 2
    assert tables.tiles.tolist()[2:] == [[row // 8, row, row + 1] for row in range(16)]


def test_parameters_that_have_not_changed_are_not_written_again(executor: GraphExecutor) -> None:
    forward, options = forward_of(executor, RoundShape(2, 4)), SamplingOptions(is_sampled=True)
    params = decode_params("verify", temperature=0.5)
    forward.write_params(1, params, options)
    assert forward.head.host_temperature.tolist()[:9] == [0.0] * 4 + [0.5] * 4 + [0.0]
    forward.head.host_temperature.zero_()
    forward.write_params(1, params, options)
    assert not forward.head.host_temperature.any()
