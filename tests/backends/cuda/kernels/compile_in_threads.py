"""Compiles all kernels of a small backend for Hopper in threads, without a GPU. `test_triton_compile.py` runs it.

A fake driver names the target. Launches must compile instead of being run, and after the context every kernel of the
backend's graphs must be in Triton's cache, so that a launch finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from quicksilver.backends.config import BackendConfig
from quicksilver.backends.cuda import backend, block_rounds, build, graphs, parallel_compile, persistent_batch, rounds
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.lowrank import new_canvas
from quicksilver.model.transformer import Transformer

CONFIG = ModelConfig("llama", 2, 256, 512, 4, 2, 64, 1024, 512, tied_head=True)


def use_fake_driver() -> None:
    target = GPUTarget("cuda", 90, 32)
    calls: dict[str, Callable[..., Any]] = {
        "get_current_device": lambda: 0, "get_current_stream": lambda device: 0, "get_current_target": lambda: target,
    }  # fmt: skip
    driver.set_active(SimpleNamespace(**calls))  # type: ignore[arg-type]


def main() -> None:
    use_fake_driver()
    compiled, works = Counter[str](), list[Callable[[], None]]()
    whole = triton.runtime.jit.JITFunction._do_compile

    def counted(self: Any, *args: Any) -> Any:
        compiled[f"{self._fn_name} {args[0]}"] += 1
        return whole(self, *args)

    def deferred(work: Callable[[], None], device: torch.device, pool: object) -> Callable[[], None]:
        """As on a GPU, without a capture."""
        compilation = parallel_compile.active_compilation()
        assert compilation is not None
        works.append(work)
        return compilation.defer(work, lambda: work)

    triton.runtime.jit.JITFunction._do_compile = counted
    for module in (graphs, rounds, persistent_batch, block_rounds):
        module.capture = deferred
    build.compiled_in_threads = lambda device: parallel_compile.compiled_in_threads(torch.device("cuda"))  # type: ignore[assignment]
    backend.CudaBackend.measure = lambda self: None  # type: ignore[method-assign]
    model = Transformer(CONFIG).to(torch.bfloat16).requires_grad_(False)
    model.canvas = new_canvas(CONFIG, 16, 16, 0).to(torch.bfloat16)
    cache = PagedCache.allocate(CONFIG, 64, 16, "cpu", torch.bfloat16, 64)
    limits = BackendConfig(max_rows=64, prompt_rows=64, max_sequences=16, context_len=256)
    build.build_backend(model, cache, limits)
    num_compiled = len(compiled)
    assert num_compiled > 20, compiled
    assert max(compiled.values()) == 1, compiled.most_common(1)
    # Launches that only compile find every kernel.
    mode = parallel_compile._triton_mode()
    assert mode is not None
    compiled.clear()
    with parallel_compile.ThreadPoolExecutor(1) as executor, mode(executor):
        for work in works:
            work()
    assert not compiled, compiled
    print(f"{num_compiled} kernels for {len(works)} graphs")


if __name__ == "__main__":
    main()
