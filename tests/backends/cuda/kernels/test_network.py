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


def test_without_the_persistent_kernel_a_small_network_equals_the_eager_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "USE_PERSISTENT", False)
    checks.check_network(replace(PLAIN, num_layers=1), 0, True, ("one", "canvas"))


@pytest.mark.parametrize("is_on", [True, False])
def test_the_switch_changes_the_path_of_a_small_network_and_not_its_size(
    monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    monkeypatch.setattr(network, "USE_PERSISTENT", is_on)
    place, model = here(), checks.model_of(PLAIN)
    cache = PagedCache.allocate(PLAIN, 4, 16, place.device, place.dtype)
    executor = GraphExecutor(model, cache, 64, GraphLimits(max_rows=64, max_segments=4, context_len=64))
    assert executor.network.is_small
    assert executor.network.is_persistent(64) == is_on
    assert not executor.network.is_persistent(256)
