"""The six-launch path and the choice of a path."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels import network
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from tests.support import graph_checks as checks
from tests.support.kernel_checks import here

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
PLAIN = ModelConfig("llama", 2, 32, 64, 2, 1, 32, 60, 256, tied_head=True)


def test_batch_invariant_matmul_gives_a_sequence_the_same_values_alone_and_in_a_batch() -> None:
    checks.check_batch_invariant_matmul(replace(PLAIN, num_layers=1), (14,))


def test_a_small_network_equals_the_eager_network() -> None:
    checks.check_network(replace(PLAIN, num_layers=1), 0, True, ("one", "canvas"))


@pytest.mark.parametrize("limit", [0, 1 << 40])
def test_a_model_is_small_by_the_bytes_of_its_weights(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(network, "SMALL_MODEL_BYTES", limit)
    place, model = here(), checks.model_of(PLAIN)
    cache = PagedCache.allocate(PLAIN, 4, 16, place.device, place.dtype)
    executor = GraphExecutor(model, cache, 64, GraphLimits(max_rows=64, max_segments=4, context_len=64))
    assert executor.network.is_small == bool(limit)
