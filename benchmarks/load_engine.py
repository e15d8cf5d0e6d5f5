"""The engine alone under load: no socket, no HTTP. Used by `load.py --engine`.

A phase counts the time of the engine's thread in it, without the phases that it calls: plan, forward (inputs, launches
and results of ordinary forwards), launch (rounds of the persistent batch), wait (for the device), commit, and the rest
of a step.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.load_prompts import KINDS, SCHEMAS, SYSTEM, text_of
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.core import ConstraintSpec, DecodeParams, DecoderName, DecoderParams, Delta, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import LoadConfig, for_serving, load_engine
from quicksilver.hub.resolve import resolve
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer

PHASES = ("plan", "forward", "launch", "wait", "commit", "rest")


@dataclass
class PhaseClock:
    """Seconds by phase. Nested phases are subtracted from the one that calls them."""

    seconds: Counter[str] = field(default_factory=Counter)
    _inner: list[float] = field(default_factory=lambda: [0.0])

    def timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            self._inner.append(0.0)
            try:
                return call(*args, **options)
            finally:
                total = time.perf_counter() - start
                self.seconds[phase] += total - self._inner.pop()
                self._inner[-1] += total

        return run

    def attach(self, engine: Engine) -> None:
        """Times the phases of this engine from now on."""
        places: list[tuple[Any, str, str]] = [
            (engine, "step", "rest"), (engine.scheduler, "plan", "plan"), (engine.backend, "run", "forward"),
            (engine, "_commit", "commit"), (engine.slots, "launch", "launch"), (engine.slots, "commit", "commit"),
        ]  # fmt: skip
        if engine.slots is not None:
            places.append((engine.slots.batch, "wait", "wait"))
        for owner, name, phase in places:
            if owner is not None:
                setattr(owner, name, self.timed(phase, getattr(owner, name)))


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
    """An engine with its tokenizer, and requests for it."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    grammars: list[ConstraintSpec]
    decoder: DecoderParams
    _tickets: int = 0

    @classmethod
    def load(cls, options: Any) -> LoadedEngine:
        files, load = resolve(options.model), LoadConfig(weights=options.weights, threads=options.threads)
        settings = {name: value for name, value in vars(options).items() if name in ENGINE_SETTINGS and value}
        engine = load_engine(files, load, for_serving(EngineConfig(**settings), load))
        tokenizer = Tokenizer.for_model(files.weights, files.skill)
        engine.constraints = Grammars(tokenizer.to_json(), tokenizer.eos_ids, engine.info.vocab_size).constraint
        forms = [ResponseFormat(FormatKind.JSON_SCHEMA, schema) for schema in SCHEMAS]
        grammars = [compile_response_format(form) for form in forms]
        decoder = DecoderParams(DecoderName(options.decoder), 1 if options.decoder == "ar" else 16)
        return cls(engine, tokenizer, ChatTemplate.for_tokenizer(tokenizer), grammars, decoder)

    def request(self, kind: str, index: int, max_tokens: int, has_schema: bool = False) -> Request:
        """The next request; its id is unique."""
        self._tickets += 1
        turns = [Message("system", SYSTEM), Message("user", text_of(kind, index, self._tickets))]
        rendered = self.template.render(turns)
        stop_ids = self.tokenizer.eos_ids
        banned = tuple(sorted(self.tokenizer.mute_ids - set(stop_ids)))
        params = DecodeParams(max_tokens, stop_ids=stop_ids, banned_ids=banned, decoder=self.decoder)
        grammar = self.grammars[index % len(self.grammars)] if has_schema else None
        return Request(f"r{self._tickets}", tuple(rendered.ids), params, constraint=grammar)

    def long_request(self, num_tokens: int) -> Request:
        self._tickets += 1
        rng = random.Random(self._tickets)
        words = self.tokenizer.encode("the quick brown fox jumps over a lazy dog while rain falls on seven green hills")
        ids = tuple(rng.choice(words) for _ in range(num_tokens))
        return Request(f"r{self._tickets}", ids, DecodeParams(8, decoder=self.decoder))


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
    waiting = [
        loaded.request(kinds[i % len(kinds)], i // len(kinds), max_tokens, has_schema)
        for i in range(max(num_requests, streams))
    ]
    waiting.reverse()
    arrivals: dict[str, list[tuple[float, int]]] = {}
    started: dict[str, float] = {}
    running = num_tokens = num_steps = 0
    before = engine.stats()
    clock.attach(engine)
    with device_waits(clock):
        begin = time.perf_counter()
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
        seconds = time.perf_counter() - begin
    detach(engine)
    return report(streams, seconds, num_tokens, num_steps, started, arrivals, clock) | _drafts(before, engine.stats())


def detach(engine: Engine) -> None:
    """Removes the timers, so that calls reach the methods of the class again."""
    slots = engine.slots
    for owner in (engine, engine.scheduler, engine.backend, slots, slots and slots.batch):
        for name in ("step", "_commit", "plan", "run", "launch", "commit", "wait"):
            if owner is not None:
                vars(owner).pop(name, None)


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
        "phase_pct": {name: round(100 * clock.seconds[name] / total, 1) for name in PHASES},
        "phase_ms_per_step": {name: round(1e3 * clock.seconds[name] / num_steps, 3) for name in PHASES},
    }


def long_prompts(loaded: LoadedEngine, num_tokens: int, repeats: int = 5) -> dict[str, Any]:
    """Milliseconds to the first token of a long prompt, alone."""
    engine, times = loaded.engine, []
    for _ in range(repeats):
        start = time.perf_counter()
        engine.add(loaded.long_request(num_tokens))
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
    wanted = [loaded.request(KINDS[i % len(KINDS)], i // len(KINDS), max_tokens) for i in range(count)]
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
