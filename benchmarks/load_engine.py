"""The engine alone under load: no socket, no HTTP. Used by `load.py --engine`.

A phase counts the time of the engine's thread in it, without the phases that it calls: plan, forward (inputs, launches
and results of ordinary forwards), launch (rounds of the persistent batch), wait (for the device), commit, and the rest
of a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.load_prompts import KINDS
from benchmarks.load_requests import RequestSource
from benchmarks.phase_clock import ENGINE_PHASES, PhaseClock, detach
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.core import Delta, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import LoadConfig, for_serving, load_engine
from quicksilver.hub.resolve import resolve


@contextmanager
def device_waits(clock: PhaseClock) -> Iterator[None]:
    """Counts waits for the device inside ordinary forwards as `wait`, where there is a GPU backend."""
    try:
        from quicksilver.backends.cuda.buffers import HeadBuffers
    except ImportError:
        yield
        return
    original = HeadBuffers.read
    HeadBuffers.read = clock.timed("wait", original)  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeadBuffers.read = original  # type: ignore[method-assign]


@dataclass
class LoadedEngine:
    """An engine, and requests for it."""

    engine: Engine
    source: RequestSource

    @classmethod
    def load(cls, options: Any) -> LoadedEngine:
        files, load = resolve(options.model), LoadConfig(weights=options.weights, threads=options.threads)
        settings = {name: value for name, value in vars(options).items() if name in ENGINE_SETTINGS and value}
        engine = load_engine(files, load, for_serving(EngineConfig(**settings), load))
        source = RequestSource.of_model(files, options)
        tokenizer = source.tokenizer
        engine.constraints = Grammars(tokenizer.to_json(), tokenizer.eos_ids, engine.info.vocab_size).constraint
        return cls(engine, source)


ENGINE_SETTINGS = ("matmul", "max_running", "max_rows")


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


def closed_loop(
    loaded: LoadedEngine, streams: int, num_requests: int, max_tokens: int, has_schema: bool = False
) -> dict[str, Any]:
    """`streams` requests at any time, until `num_requests` are answered."""
    engine, clock = loaded.engine, PhaseClock()
    kinds = ("json",) if has_schema else KINDS
    waiting = loaded.source.mixed(max(num_requests, streams), kinds, max_tokens, has_schema)
    waiting.reverse()
    arrivals: dict[str, list[tuple[float, int]]] = {}
    started: dict[str, float] = {}
    running = num_tokens = num_steps = 0
    before = engine.stats()
    clock.attach(engine)
    with device_waits(clock):
        begin, cpu = time.perf_counter(), time.process_time()
        while waiting or running:
            while waiting and running < streams:
                request = waiting.pop()
                started[request.id] = time.perf_counter()
                arrivals[request.id] = []
                engine.add(request)
                running += 1
            events = engine.step()
            num_steps += 1
            now = time.perf_counter()
            for event in events:
                if isinstance(event, Delta):
                    assert event.error is None, event.error
                    arrivals[event.request_id].append((now, len(event.token_ids)))
                    num_tokens += len(event.token_ids)
                    running -= event.finish is not None
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    detach(engine)
    measured = {"cpu_us_per_token": round(1e6 * cpu / max(num_tokens, 1), 1), **_drafts(before, engine.stats())}
    return report(streams, seconds, num_tokens, num_steps, started, arrivals, clock) | measured


def _drafts(before: Any, after: Any) -> dict[str, Any]:
    return {"drafted": after.drafted_tokens - before.drafted_tokens,
            "accepted": after.accepted_tokens - before.accepted_tokens}  # fmt: skip


def report(
    streams: int,
    seconds: float,
    num_tokens: int,
    num_steps: int,
    started: dict[str, float],
    arrivals: dict[str, list[tuple[float, int]]],
    clock: PhaseClock,
) -> dict[str, Any]:
    first = [1e3 * (times[0][0] - started[name]) for name, times in arrivals.items() if times]
    gaps = [1e3 * (b[0] - a[0]) for times in arrivals.values() for a, b in pairwise(times)]
    total = sum(clock.seconds.values())
    return {
        "streams": streams,
        "requests": len(started),
        "tokens_per_s": round(num_tokens / seconds),
        "ttft_ms": [round(percentile(first, share), 1) for share in (0.5, 0.99)],
        "gap_ms": [round(percentile(gaps, share), 2) for share in (0.5, 0.99)],
        "ms_per_step": round(1e3 * seconds / num_steps, 3),
        "tokens_per_step": round(num_tokens / num_steps, 2),
        "host_us_per_token": round(1e6 * (total - clock.seconds["wait"]) / max(num_tokens, 1), 2),
        "phase_pct": {name: round(100 * clock.seconds[name] / total, 1) for name in ENGINE_PHASES},
        "phase_ms_per_step": {name: round(1e3 * clock.seconds[name] / num_steps, 3) for name in ENGINE_PHASES},
    }


def long_prompts(loaded: LoadedEngine, num_tokens: int, repeats: int = 5) -> dict[str, Any]:
    """Milliseconds to the first token of a long prompt, alone."""
    engine, times = loaded.engine, []
    for _ in range(repeats):
        start = time.perf_counter()
        engine.add(loaded.source.long_request(num_tokens))
        while not engine.step():
            pass
        times.append(1e3 * (time.perf_counter() - start))
        while engine.has_work:
            engine.step()
    return {"prompt_tokens": num_tokens, "ttft_ms": [round(one, 1) for one in sorted(times)]}


def equal_alone(loaded: LoadedEngine, count: int, max_tokens: int) -> dict[str, Any]:
    """How many of `count` requests have the same tokens together as each one alone. The prefix cache is emptied before
    every run, so that prompts are computed each time."""
    engine = loaded.engine
    wanted = loaded.source.mixed(count, KINDS, max_tokens)
    together = answers(engine, wanted)
    alone: dict[str, list[int]] = {}
    for request in wanted:
        alone |= answers(engine, [request])
    equal = sum(together[name] == tokens for name, tokens in alone.items())
    return {"requests": count, "equal_alone": equal, "tokens": sum(map(len, alone.values()))}


def answers(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    engine.pool.clear_cache()
    found: dict[str, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Delta):
                assert event.error is None, event.error
                found[event.request_id] += event.token_ids
    return found
