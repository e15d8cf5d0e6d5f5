"""Compiles the kernels of many graphs in threads before the graphs are captured.

A kernel is compiled at its first launch, which takes about half a second, and the graphs of a backend launch about a
hundred different kernels. Inside `compiled_in_threads` a graph is not captured: its work runs once without launching
anything, and each new kernel is compiled in a thread. All graphs are captured when the context ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import Any

import torch

from quicksilver.backends.progress import counted

log = logging.getLogger("quicksilver.start")

MAX_THREADS = 16
_active: Compilation | None = None


class PendingGraph:
    """A graph that is captured at its first replay, or by `capture`."""

    def __init__(self, capture: Callable[[], Callable[[], None]]) -> None:
        self._capture = capture
        self._replay: Callable[[], None] | None = None

    def capture(self) -> Callable[[], None]:
        if self._replay is None:
            self._replay = self._capture()
        return self._replay

    def __call__(self) -> None:
        self.capture()()


class Compilation:
    """What `compiled_in_threads` collects: graphs to capture, and compilations that threads run."""

    def __init__(self, executor: Executor) -> None:
        self.graphs: list[PendingGraph] = []
        self._executor = executor
        self._submitted: dict[object, Future[object]] = {}

    def defer(self, work: Callable[[], None], capture: Callable[[], Callable[[], None]]) -> PendingGraph:
        """Compile the kernels that `work` launches -> its graph, which is captured later."""
        work()
        self.graphs.append(PendingGraph(capture))
        return self.graphs[-1]

    def submit(self, key: object, compile_: Callable[[], object]) -> None:
        """Run a compilation in a thread, once for each key."""
        if key not in self._submitted:
            self._submitted[key] = self._executor.submit(compile_)

    def futures(self) -> list[Future[object]]:
        return list(self._submitted.values())


def active_compilation() -> Compilation | None:
    """Launches must be compiled instead of being run while there is one."""
    return _active


@contextmanager
def compiled_in_threads(device: torch.device, num_threads: int = 0) -> Iterator[None]:
    """Captures inside the context wait for its end. Without CUDA, or with a version of Triton that cannot compile in
    threads, they take place at once."""
    global _active
    if device.type != "cuda" or (triton_mode := _triton_mode()) is None:
        yield
        return
    workers = ThreadPoolExecutor(num_threads or min(os.cpu_count() or 1, MAX_THREADS))
    with workers as executor, triton_mode(executor) as triton_futures:
        _active = compilation = Compilation(executor)
        try:
            yield
        finally:
            _active = None
        _wait([*compilation.futures(), *triton_futures()])
    for graph in counted("capturing graphs", compilation.graphs):
        graph.capture()


def _wait(futures: list[Future[Any]]) -> None:
    """Errors are raised at the first launch of the kernel that could not be compiled."""
    for future in counted("compiling kernels", futures):
        wait_for([future])


def _triton_mode() -> Callable[[Executor], Any] | None:
    """A context in which Triton's launches compile in an executor; None if this version of Triton has none. It returns
    a call that lists the compilations."""
    try:
        from triton.runtime._async_compile import AsyncCompileMode
        from triton.runtime.jit import JITFunction

        run, submit = JITFunction.run, JITFunction._do_compile
    except (ImportError, AttributeError):
        log.info("this version of Triton compiles kernels one by one")
        return None

    @contextmanager
    def mode(executor: Executor) -> Iterator[Callable[[], list[Future[Any]]]]:
        def compile_only(self: Any, *args: Any, warmup: bool = False, **options: Any) -> Any:
            return run(self, *args, warmup=True, **options)

        def submit_once(self: Any, key: str, signature: Any, device: Any, *args: Any) -> Any:
            """Until it is compiled, the cache holds the kernel's future: later launches need not compute Triton's hash
            of the kernel, its options and the environment again."""
            kernel = submit(self, key, signature, device, *args)
            if kernel is not None:
                self.device_caches[device][0].setdefault(key, kernel)
            return kernel

        JITFunction.run, JITFunction._do_compile = compile_only, submit_once
        try:
            with AsyncCompileMode(executor, ignore_errors=True) as active:
                yield lambda: list(getattr(active, "raw_futures", ()))
        finally:
            JITFunction.run, JITFunction._do_compile = run, submit

    return mode
