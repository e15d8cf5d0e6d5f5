"""Capture device work once and replay it: a CUDA graph, or without CUDA the work itself."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from quicksilver.backends.cuda.parallel_compile import PendingGraph, pending_graphs

# Runs before a capture: they compile kernels, load them and allocate the workspaces of libraries.
_NUM_WARM_UP_RUNS = 2


def capture(work: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    """Capture `work` as a CUDA graph after warm-up runs. Without CUDA it stays a plain call. Inside
    `compiled_in_threads` the capture is deferred.

    The warm-up runs have their effects, so `work` must be safe to repeat on any buffer contents. Graphs of one pool
    share scratch memory, so they must not run at the same time. Other threads may copy to the device meanwhile.
    """
    if device.type != "cuda":
        return work
    if (pending := pending_graphs.get()) is not None:
        pending.append(PendingGraph(work, partial(_capture, work, device, pool)))
        return pending[-1]
    return _capture(work, device, pool)


def _capture(work: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_NUM_WARM_UP_RUNS):
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with without_collection(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        work()
    return graph.replay


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection: freeing CUDA memory or graphs during a capture invalidates it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def time_replay(replay: Callable[[], None], repeats: int = 5) -> float:
    """Milliseconds per replay: device time, or wall time without CUDA."""
    replay()
    if not torch.cuda.is_available():
        start = time.perf_counter()
        replay()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats
