"""Work on the device recorded once and then replayed: a CUDA graph, or without CUDA the work itself."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def capture(work: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    """`work` as a graph: run twice to compile and settle, then recorded. Without CUDA it stays a plain call.

    The two runs really happen, so `work` must be safe to repeat on whatever its buffers hold. Graphs of one pool share
    scratch memory, so they must not run at the same time.
    """
    if device.type != "cuda":
        return work
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with without_collection(), torch.cuda.graph(graph, pool=pool):
        work()
    return graph.replay


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is collected inside: memory or graphs of CUDA that were freed there would spoil a recording."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def time_replay(replay: Callable[[], None], repeats: int = 5) -> float:
    """Milliseconds on the device, or on the clock where there is none."""
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
