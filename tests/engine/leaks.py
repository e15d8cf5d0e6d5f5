"""Random requests with aborts, stops and failures, and what is left in the engine after them.

    python -m tests.engine.leaks [--requests 10000] [--seed 0]

Runs a tiny model with slots of a persistent batch on the host. `test_decode_slots.py` runs a short version.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from quicksilver.backends.base import Outcome, Work
from quicksilver.core import ConstraintSpec, Delta, FinishReason, Request, ScoreRequest, TokenConstraint
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine, Scored, StepEvent
from quicksilver.errors import QuicksilverError
from tests.support.host_rounds import HostRounds, with_host_rounds
from tests.support.staircase import STOP, Staircase
from tests.support.tiny import decode_params, tiny_engine

NUM_PAGES = 60
NUM_TENANTS = 40
PARAMS = [
    decode_params("ar", max_new_tokens=12),
    decode_params("ar", max_new_tokens=7, temperature=0.9, seed=5),
    decode_params("verify", canvas_len=8, max_new_tokens=14),
    decode_params("verify", canvas_len=8, max_new_tokens=14, stop_ids=(5, 17, 40, 60), banned_ids=(3,)),
    decode_params("verify", max_new_tokens=10, logit_bias={7: 3.0}, temperature=1.1, seed=2),
    decode_params("confidence", canvas_len=8, threshold=0.3, max_new_tokens=12),
    decode_params("verify", max_new_tokens=9, logprobs=1),
]
CONSTRAINED = decode_params("verify", canvas_len=8, stop_ids=(STOP,), max_new_tokens=30)


class Broken(Staircase):
    """A grammar that raises after two tokens."""

    def advance(self, tokens: Sequence[int]) -> None:
        super().advance(tokens)
        if len(self.taken) > 2:
            raise RuntimeError("broken")


def make_constraint(spec: ConstraintSpec) -> TokenConstraint:
    return Broken() if spec.grammar == "broken" else Staircase(12)


@contextmanager
def one_thread() -> Iterator[None]:
    """Forwards of a tiny model take less time than the synchronisation of two threads on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class RandomTraffic:
    """One engine under random requests. `ends` counts how they ended."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._prompts = [tuple(self._rng.randrange(STOP) for _ in range(self._rng.randrange(2, 60))) for _ in range(14)]
        config = EngineConfig(num_pages=NUM_PAGES, max_rows=96, max_waiting=24)
        self.engine: Engine = tiny_engine(config)
        self.engine.constraints = make_constraint
        self.rounds: HostRounds = with_host_rounds(self.engine)
        self._forward = self.engine.backend.run
        self.engine.backend.run = self._run  # type: ignore[method-assign]
        self._open: set[str] = set()
        self._faulty: set[str] = set()  # requests whose forwards raise
        self.ends: Counter[str] = Counter()

    def run(self, num_requests: int) -> None:
        with one_thread():
            self._run_all(num_requests)

    def _run_all(self, num_requests: int) -> None:
        for i in range(num_requests):
            self._add(str(i))
            if self._rng.random() < 0.2 and self._open:
                self.engine.abort(self._rng.choice(sorted(self._open)))
            self.rounds.fails = self._rng.random() < 0.02
            self._step()
        self.rounds.fails = False
        while self.engine.has_work:
            self._step()

    def leftovers(self) -> dict[str, Any]:
        """What the engine still holds; empty if nothing leaked."""
        engine, waiting = self.engine, self.engine.scheduler.waiting
        assert engine.slots is not None
        held = {
            "pages": NUM_PAGES - engine.pool.num_free,
            "page references": sum(engine.pool._refs),
            "slots": len(engine.slots),
            "slots of the device": len(self.rounds._copies),
            "sequences": len(engine._sequences),
            "running": len(engine.scheduler.running),
            "waiting": engine.scheduler.num_waiting,
            "queues": sum(map(len, waiting._queues)) + sum(map(len, waiting._preempted)),
            "tenants": len(waiting._num_open),
            "requests without an end": len(self._open),
        }
        return {name: count for name, count in held.items() if count}

    def _add(self, name: str) -> None:
        rng = self._rng
        prompt, tenant, kind = rng.choice(self._prompts), f"t{rng.randrange(NUM_TENANTS)}", rng.random()
        if kind < 0.03:
            self._faulty.add(name)
        try:
            if kind > 0.97:
                self.engine.add_score(ScoreRequest(name, prompt, ((1, 2, 3), (4,)), tenant))
            elif kind > 0.85:
                spec = ConstraintSpec("broken" if kind > 0.94 else "staircase")
                self.engine.add(Request(name, prompt, CONSTRAINED, tenant, constraint=spec))
            else:
                self.engine.add(Request(name, prompt, rng.choice(PARAMS), tenant, is_batch=kind < 0.1))
        except QuicksilverError:
            self.ends["refused"] += 1
        else:
            self._open.add(name)

    def _step(self) -> None:
        for event in self.engine.step():
            end = _end_of(event)
            if end:
                self._open.remove(event.request_id)  # raises if a request ends twice
                self.ends[end] += 1

    def _run(self, works: Sequence[Work]) -> list[Outcome | None]:
        if any(work.sequence.id in self._faulty for work in works):
            raise RuntimeError("a faulty request")
        return self._forward(works)


def _end_of(event: StepEvent) -> str:
    if isinstance(event, Scored):
        return "scored"
    return str(event.finish) if isinstance(event, Delta) and event.finish is not None else ""


ENDS = {*(str(reason) for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR)),
        "scored"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # rounds that fail on purpose
    traffic = RandomTraffic(options.seed)
    traffic.run(options.requests)
    stats = traffic.engine.stats()
    report = {
        "requests": options.requests, "seed": options.seed, "cpu_s": round(time.process_time(), 1),
        "ends": dict(traffic.ends), "preemptions": stats.preemptions, "rounds": traffic.rounds.num_launched,
        "left": traffic.leftovers(),
    }  # fmt: skip
    print(json.dumps(report))
    raise SystemExit(bool(traffic.leftovers()))


if __name__ == "__main__":
    main()
