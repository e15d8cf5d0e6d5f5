"""Compiles all kernels of a small backend for Hopper in threads, without a GPU. `test_triton_compile.py` runs it.

A fake driver names the target and counts launches. While threads compile, nothing may be launched. In the captures
afterwards every launch must find its kernel. A kernel that a thread cannot compile is compiled at its first launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from quicksilver.backends.config import BackendConfig
from quicksilver.backends.cuda import backend, block_rounds, build, graphs, parallel_compile, persistent_batch, rounds
from quicksilver.backends.cuda.parallel_compile import PendingGraph, compiled_in_threads
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.canvas_adapters import new_canvas

CONFIG = ModelConfig("llama", 2, 256, 512, 4, 2, 64, 1024, 512, tied_head=True)
CUDA = torch.device("cuda")
# More than cores, so that compilations run at the same time.
NUM_THREADS = 8
# Of a program on an H100.
SHARED_BYTES = 232_448

launched = Counter[str]()


def use_fake_driver() -> None:
    target = GPUTarget("cuda", 90, 32)
    calls: dict[str, Any] = {
        "get_current_device": lambda: 0, "get_current_stream": lambda device: 0, "get_current_target": lambda: target,
        "launcher_cls": lambda src, metadata: lambda *args: launched.update([metadata.name]),
        "utils": SimpleNamespace(
            load_binary=lambda name, kernel, shared, device: (name, 1, 0, 0, 1024),
            get_device_properties=lambda device: {"max_shared_mem": SHARED_BYTES},
        ),
    }  # fmt: skip
    driver.set_active(SimpleNamespace(**calls))  # type: ignore[arg-type]


def defer(work: Callable[[], None], device: torch.device, pool: object) -> Callable[[], None]:
    """As `capture.capture` on a GPU. The capture launches the kernels."""

    def captured() -> Callable[[], None]:
        work()
        return work

    pending = parallel_compile.pending_graphs.get()
    assert pending is not None
    pending.append(PendingGraph(work, captured))
    return pending[-1]


def count_compilations() -> Counter[str]:
    """How often each kernel is compiled from now on, and that none is compiled after the first launch."""
    compiled = Counter[str]()
    whole = triton.runtime.jit.JITFunction._do_compile

    def counted(self: Any, *args: Any) -> Any:
        assert not launched, f"{self._fn_name} is compiled after a launch"
        compiled[f"{self._fn_name} {args[0]}"] += 1
        return whole(self, *args)

    triton.runtime.jit.JITFunction._do_compile = counted
    return compiled


def check_backend() -> str:
    methods = (triton.runtime.jit.JITFunction.run, triton.runtime.jit.JITFunction._do_compile)
    compiled = count_compilations()
    for module in (graphs, rounds, persistent_batch, block_rounds):
        module.capture = defer
    build.compiled_in_threads = lambda device, num_threads: compiled_in_threads(CUDA, num_threads)  # type: ignore[assignment]
    backend.CudaBackend.measure = lambda self: None  # type: ignore[method-assign]
    model = Transformer(CONFIG).to(torch.bfloat16).requires_grad_(False)
    model.canvas = new_canvas(CONFIG, 16, 16, 0).to(torch.bfloat16)
    cache = PagedCache.allocate(CONFIG, 64, 16, "cpu", torch.bfloat16, 64)
    limits = BackendConfig(
        max_rows=64, prompt_rows=64, max_sequences=16, context_len=256, compile_threads=NUM_THREADS
    )  # fmt: skip
    build.build_backend(model, cache, limits)
    assert len(compiled) > 20, compiled
    assert max(compiled.values()) == 1, compiled.most_common(1)
    assert len(launched) > 10, launched
    triton.runtime.jit.JITFunction._do_compile = methods[1]
    assert triton.runtime.jit.JITFunction.run is methods[0], "launches still compile"
    return f"{len(compiled)} kernels, {launched.total()} launches"


@triton.jit
def _store_one(x):
    tl.store(x, 1)


def check_failed_compilation() -> None:
    _store_one.device_caches[0]  # it sets `compile`
    whole, x, failed = _store_one.compile, torch.zeros(1), list[object]()

    def fail(*args: Any, **options: Any) -> None:
        failed.append(args)
        raise RuntimeError("no such instruction")

    def captured() -> Callable[[], None]:
        _store_one.compile = whole
        launch()
        return launch

    _store_one.compile, launch = fail, partial(_store_one[1,], x)
    before = launched["_store_one"]
    with compiled_in_threads(CUDA, NUM_THREADS):
        pending = parallel_compile.pending_graphs.get()
        assert pending is not None
        pending += [PendingGraph(launch, captured), PendingGraph(launch, lambda: launch)]
    assert len(failed) == 1
    assert launched["_store_one"] == before + 1


def main() -> None:
    use_fake_driver()
    torch.cuda.synchronize = lambda device: None  # type: ignore[assignment]
    print(check_backend())
    check_failed_compilation()


if __name__ == "__main__":
    main()
