"""Which backend a device gets, and the memory that it needs."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.base import MemoryNeeds
from quicksilver.backends.choose import make_backend, memory_needs
from quicksilver.backends.config import BackendConfig
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.model.attention import PagedCache
from tests.support.tiny import tiny_model


def test_a_cpu_without_packed_weights_runs_torch() -> None:
    model = tiny_model()
    cache = PagedCache.allocate(model.config, 4, 16, "cpu", torch.float32)
    backend = make_backend(model, cache, BackendConfig())
    assert type(backend) is TorchBackend
    assert backend.round_cost is None


@pytest.mark.parametrize(("device", "cuda_graphs"), [("cpu", True), ("cuda", False)])
def test_only_cuda_graphs_need_more_than_pages(device: str, cuda_graphs: bool) -> None:
    assert memory_needs(BackendConfig(cuda_graphs=cuda_graphs), torch.device(device)) == MemoryNeeds()


def test_cuda_graphs_need_scratch_slots_and_spare_pages() -> None:
    needs = memory_needs(BackendConfig(), torch.device("cuda"))
    assert needs.scratch_slots >= 64
    assert needs.spare_pages > 0
