"""Compiles the kernels of many graphs in threads before the graphs are captured.

A kernel is compiled at its first launch, which takes about half a second, and the graphs of a backend launch about a
hundred different kernels. Graphs of `compiled_in_threads` are captured when the context ends. Before, the work of all
graphs runs once while launches only compile, in threads. If that fails, kernels are compiled at their first launch.

What torch computes in the work does run, from buffers that no kernel has filled. No operation in it may use computed
values as indices or read them on the host (`tests/backends/cuda/test_graph_operations.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from quicksilver.backends.progress import counted

log = logging.getLogger("quicksilver.start")
_FAILED = "kernels are compiled one by one, not in threads; if the start fails now, set compile_threads to 0"

_one_at_a_time = threading.Lock()  # a compilation replaces methods of Triton


class PendingGraph:
    """A graph that is captured at its first replay, or by `capture`."""

    def __init__(self, work: Callable[[], None], capture: Callable[[], Callable[[], None]]) -> None:
        self.work, self._capture = work, capture
        self._replay: Callable[[], None] | None = None

    def capture(self) -> Callable[[], None]:
        if self._replay is None:
            self._replay = self._capture()
        return self._replay

    def __call__(self) -> None:
        self.capture()()


class Compilation:
    """Compilations that threads run."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._submitted: dict[object, Future[object]] = {}

    def submit(self, key: object, compile_: Callable[[], object]) -> None:
        """Run a compilation in a thread, once for each key."""
        if key not in self._submitted:
            self._submitted[key] = self.executor.submit(compile_)

    def wait(self, others: list[Future[Any]]) -> None:
        """Wait for all compilations; raises the error of the first one that failed."""
        futures = [*self._submitted.values(), *others]
        for future in counted("compiling kernels", futures):
            wait_for([future])
        for future in futures:
            future.result()


# Of this thread: others may launch and capture meanwhile. Captures inside `compiled_in_threads` add their graphs.
pending_graphs: ContextVar[list[PendingGraph] | None] = ContextVar("pending_graphs", default=None)
_active: ContextVar[Compilation | None] = ContextVar("_active", default=None)


def active_compilation() -> Compilation | None:
    """Launches must be compiled instead of being run while there is one."""
    return _active.get()


@contextmanager
def compiled_in_threads(device: torch.device, num_threads: int) -> Iterator[None]:
    """Captures inside the context wait for its end. Without CUDA or threads they take place at once."""
    if device.type != "cuda" or not num_threads:
        yield
        return
    graphs = list[PendingGraph]()
    token = pending_graphs.set(graphs)
    try:
        yield
    finally:
        pending_graphs.reset(token)
    try:
        with _one_at_a_time:
            _compile([graph.work for graph in graphs], num_threads)
        torch.cuda.synchronize(device)
    except Exception:  # of any type: what this uses of Triton is not a stable interface
        log.warning(_FAILED, exc_info=True)
    for graph in counted("capturing graphs", graphs):
        graph.capture()


def _compile(works: list[Callable[[], None]], num_threads: int) -> None:
    """Compile the kernels that `works` launch."""
    with ThreadPoolExecutor(num_threads) as executor, _launches_compile(executor) as (compilation, triton_futures):
        for work in works:
            work()
        compilation.wait(triton_futures)


@contextmanager
def _launches_compile(executor: Executor) -> Iterator[tuple[Compilation, list[Future[Any]]]]:
    """Launches of this thread compile in an executor instead of being run -> what is compiled for `layer_fused`, and
    the compilations of Triton."""
    from triton.runtime._async_compile import AsyncCompileMode, FutureKernel, active_mode
    from triton.runtime.jit import JITFunction

    run, submit, waiting = JITFunction.run, JITFunction._do_compile, list[tuple[dict[str, Any], str]]()

    def compile_only(self: Any, *args: Any, warmup: bool = False, **options: Any) -> Any:
        return run(self, *args, warmup=warmup or _active.get() is not None, **options)

    def submit_once(self: Any, key: str, signature: Any, device: Any, *args: Any) -> Any:
        """Until it is compiled, the cache holds the kernel's future: later launches need not compute Triton's hash of
        the kernel, its options and the environment again."""
        kernel, kernels = submit(self, key, signature, device, *args), self.device_caches[device][0]
        if isinstance(kernel, FutureKernel):
            kernels.setdefault(key, kernel)
            waiting.append((kernels, key))
        return kernel

    compilation = Compilation(executor)
    token = _active.set(compilation)
    JITFunction.run, JITFunction._do_compile = compile_only, submit_once
    try:
        with AsyncCompileMode(executor, ignore_errors=True) as mode:
            yield compilation, mode.raw_futures
    finally:
        JITFunction.run, JITFunction._do_compile = run, submit
        _active.reset(token)
        active_mode.set(None)  # also if the mode failed to end
        for kernels, key in waiting:
            if isinstance(kernels.get(key), FutureKernel):  # failed: the first launch compiles it again
                del kernels[key]
