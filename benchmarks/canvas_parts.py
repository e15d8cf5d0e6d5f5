"""Device time of the parts of a step of random canvases: body, logits, proposals, soft embeddings, and the kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch

from quicksilver.backends.cuda.canvas_executor import CanvasExecutor
from quicksilver.backends.cuda.capture import time_replay
from quicksilver.backends.cuda.kernels.canvas_head import CanvasDraws, propose_canvas, raw_logits, soft_embeddings


def time_parts(executor: CanvasExecutor, num_rows: int) -> dict[str, float]:
    """Milliseconds of each part for `num_rows` canvas rows. The rows are those of the last forward."""
    weights, device = executor.network.weights, executor.device
    hidden = executor._hidden[:num_rows]
    ints, ones = torch.arange(num_rows, device=device), torch.ones(num_rows, device=device)
    draws, results = CanvasDraws(ones, ones, ints, ints, ints), executor._draws.results(num_rows)
    raw = raw_logits(hidden, weights.head)
    logits = propose_canvas(raw, 30.0, draws, results)
    parts: dict[str, Callable[[], object]] = {
        "body_ms": executor._graph(num_rows),
        "head_ms": lambda: raw_logits(hidden, weights.head),
        "propose_ms": lambda: propose_canvas(raw, 30.0, draws, results),
        "soft_ms": lambda: soft_embeddings(logits, weights.tokens, weights.embed_scale),
    }
    return {name: time_replay(part, repeats=20) for name, part in parts.items()}  # type: ignore[arg-type]


def time_kernels(executor: CanvasExecutor, num_rows: int, repeats: int = 4) -> dict[str, tuple[float, int]]:
    """Milliseconds and launches per body by kernel, longest first."""
    replay = executor._graph(num_rows)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            replay()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in profile.events():
        found[event.name[:90]][0] += event.device_time_total / 1e3 / repeats
        found[event.name[:90]][1] += 1 / repeats
    ordered = sorted(found.items(), key=lambda item: -item[1][0])
    return {name: (round(ms, 4), round(count)) for name, (ms, count) in ordered}
