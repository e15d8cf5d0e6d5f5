"""What torch computes in the work of graphs, whatever the kernels computed before.

`parallel_compile.py` runs the work of all graphs while launches only compile, so torch reads buffers that no kernel has
filled. An index from there would be out of range, which ends a CUDA process. Neither may the host read the device: no
graph can capture that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.config import BackendConfig
from quicksilver.backends.cuda import block_rounds, build, canvas_executor, graphs, persistent_batch, rounds
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.kernels import row_kernels
from quicksilver.backends.cuda.logit_bias import SamplingOptions
from quicksilver.model.attention import PagedCache
from tests.support.dialect_graph_checks import dialect_on_graphs
from tests.support.gemma_checks import TINY_GEMMA, gemma_of
from tests.support.graph_checks import TINIEST, model_of

# Their time, memory and addresses depend on shapes only.
ALLOWED = {
    "_scaled_mm", "_to_copy", "add_", "addmm_", "copy_", "cos", "detach", "empty", "empty_like", "expand", "full", "mm",
    "mul", "new_empty", "select", "sin", "slice", "split", "split_with_sizes", "stack", "t", "transpose", "unbind",
    "unsqueeze", "view", "zero_", "zeros",
}  # fmt: skip
SCHEMES = ("bfloat16", "fp8", "int4")


class Recorder(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """The work of all graphs. Launches do nothing, and uninitialised memory is NaN or the largest integer."""
    found = list[Callable[[], None]]()

    def capture(work: Callable[[], None], device: torch.device, pool: object) -> Callable[[], None]:
        found.append(work)
        return work

    for module in (graphs, rounds, persistent_batch, block_rounds, canvas_executor):
        monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(CudaBackend, "measure", lambda self: None)
    monkeypatch.setattr(type(row_kernels._norm_kernel), "run", lambda self, *args, **options: None)
    torch.use_deterministic_algorithms(True)
    yield found
    torch.use_deterministic_algorithms(False)


def operations_of(works: list[Callable[[], None]]) -> set[str]:
    with torch.no_grad(), Recorder() as recorder:
        for work in works:
            work()
    return recorder.names


@pytest.mark.parametrize("matmul", ["fastest", "batch_invariant"])
@pytest.mark.parametrize(
    ("family", "weights"),
    [*((None, scheme) for scheme in SCHEMES), *(("sdar", scheme) for scheme in SCHEMES), ("sdar-moe", "bfloat16"),
     ("llada2", "bfloat16"), ("llada2", "fp8")],
)  # fmt: skip
def test_no_operation_depends_on_values(
    works: list[Callable[[], None]], family: str | None, weights: str, matmul: str
) -> None:
    """Of a model with a canvas adapter and draft trees, and of models with blocks and experts; with row adapters."""
    model = model_of(TINIEST) if family is None else dialect_on_graphs(family, TINIEST)
    cache = PagedCache.allocate(model.config, 16, 16, "cpu", model.dtype, 64)
    config = BackendConfig(128, 128, 8, 64, 16, weights, matmul, adapter_bytes=1 << 20)
    with torch.no_grad():
        backend = build.build_backend(model, cache, config)
        if backend.blocks is not None:
            for graph in backend.blocks.graphs.values():
                graph.prepare(SamplingOptions(is_sampled=True))
    assert len(works) > 20
    assert not operations_of(works) - ALLOWED


@pytest.mark.parametrize("weights", ["bfloat16", "fp8"])
def test_no_operation_of_random_canvases_depends_on_values(works: list[Callable[[], None]], weights: str) -> None:
    model = gemma_of(TINY_GEMMA)
    cache = PagedCache.allocate(model.config, 16, 16, "cpu", model.dtype)
    with torch.no_grad():
        build.build_canvas_backend(model, cache, BackendConfig(512, 512, 8, 64, 16, weights))
    assert len(works) == 2
    assert not operations_of(works) - ALLOWED


def test_an_index_from_a_buffer_is_found(works: list[Callable[[], None]]) -> None:
    table, buffer = torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64)
    for work in (lambda: table[buffer], lambda: table.index_select(0, buffer), lambda: bool(table[0, 0])):
        assert operations_of([work]) - ALLOWED  # type: ignore[list-item]
    with pytest.raises(IndexError):
        operations_of([lambda: table[torch.empty(3, dtype=torch.int64)]])  # type: ignore[list-item, return-value]
