"""Constrained decoding in the real engine: what masks cost, what certain text saves, what a hostile grammar does.

    python -m benchmarks.constrain_engine SCHEMAS.jsonl[.xz] [--model nano] [--weights int8] [--tokens 320]

Batches of eight. Times are processor seconds of the engine's thread, so that a busy machine does not blur them; ratios
are from one run. The unconstrained side writes as many tokens from the same prompt with stop tokens banned.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.generation_cases import CLOSED
from benchmarks.json_generations import ROOT, usable_schemas
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.source import FormatKind, Layout, ResponseFormat
from quicksilver.core import (
    ConstraintSpec,
    DecodeParams,
    DecoderName,
    DecoderParams,
    Delta,
    FinishReason,
    Request,
    Usage,
)
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import LoadConfig, load_engine
from quicksilver.engine.step_limits import TimedConstraint
from quicksilver.hub.resolve import resolve
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer

BATCH = 8
# Repetitions of the comparison with expensive grammars. The minimum counts, because other load only adds time.
REPEATS = 4
MAX_TOKENS = 96
PROMPT = "Write a short example as JSON."
DECODERS = {
    "ar": DecoderParams(name=DecoderName.AR, canvas_len=1),
    "verify 4": DecoderParams(name=DecoderName.VERIFY, canvas_len=4),
}
# Valid regular expressions whose automata need tens of milliseconds per bitmask.
HOSTILE = (".*a.{20}b", "(.*a.{12}b|.*c.{14}d)(x|y)*")


@dataclass
class Tally:
    """Totals of one decoding run."""

    seconds: float = 0.0
    grammar_s: float = 0.0
    tokens: int = 0
    forwards: int = 0
    # Tokens and forwards of the answers that ended by themselves, so that nothing was closed for want of room.
    own: list[float] = field(default_factory=lambda: [0, 1e-9])

    def add(self, usage: Usage, finish: FinishReason) -> None:
        self.tokens += usage.completion_tokens
        self.forwards += usage.forwards
        if finish is FinishReason.STOP:
            self.own[0] += usage.completion_tokens
            self.own[1] += usage.forwards

    def report(self) -> dict[str, float]:
        return {
            "ms_per_token": round(1000 * self.seconds / self.tokens, 2),
            "ms_per_forward_of_a_request": round(1000 * self.seconds / self.forwards, 2),
            "tokens_per_forward": round(self.tokens / self.forwards, 3),
            "tokens_per_forward_of_ended_answers": round(self.own[0] / self.own[1], 3),
            "grammar_share_of_time": round(self.grammar_s / self.seconds, 4),
            "tokens": self.tokens,
        }


class Bench:
    def __init__(self, model: str, weights: str, threads: int) -> None:
        checkpoint = resolve(model)
        self.tokenizer = Tokenizer.for_model(checkpoint.weights, checkpoint.skill)
        load = LoadConfig(device="cpu", weights=weights, threads=threads)
        self.engine: Engine = load_engine(checkpoint, load, EngineConfig(kv_bytes=1 << 28))
        grammars = Grammars(self.tokenizer.to_json(), self.tokenizer.eos_ids, self.engine.info.vocab_size)
        self.engine.constraints = grammars.constraint
        self.engine.scheduler.grammar_budget.clock = time.thread_time
        template = ChatTemplate.for_tokenizer(self.tokenizer)
        self.prompt = template.render([Message("user", PROMPT)]).ids
        self._ids = count()

    def request(self, decoder: DecoderParams, spec: ConstraintSpec | None, max_tokens: int = MAX_TOKENS) -> Request:
        eos = self.tokenizer.eos_ids
        index = next(self._ids)
        banned = () if spec else eos
        params = DecodeParams(max_tokens, 0.7, seed=index, stop_ids=eos, banned_ids=banned, decoder=decoder)
        return Request(str(index), self.prompt, params, constraint=spec)

    def decode(self, decoder: DecoderParams, specs: Iterator[ConstraintSpec | None], num_tokens: int) -> Tally:
        """Keeps eight requests in flight until enough tokens have come."""
        tally, running = Tally(), set[str]()
        constraints: list[TimedConstraint] = []
        while tally.tokens < num_tokens or running:
            while len(running) < BATCH and tally.tokens < num_tokens:
                prepared = self.engine.prepare(self.request(decoder, next(specs)))
                constraints += [prepared.sequence.constraint] if prepared.sequence.constraint else []  # type: ignore[list-item]
                self.engine.enqueue(prepared)
                running.add(prepared.sequence.id)
            start = time.thread_time()
            events = self.engine.step()
            tally.seconds += time.thread_time() - start
            for event in events:
                if isinstance(event, Delta) and event.finish is not None:
                    running.discard(event.request_id)
                    assert event.usage is not None
                    tally.add(event.usage, event.finish)
        tally.grammar_s = sum(constraint.total_s for constraint in constraints)
        return tally

    def neighbours(self, others: list[ConstraintSpec | None]) -> float:
        """Processor time of the engine until four unconstrained streams are finished, with other requests in the
        batch."""
        plain = {self._add(None, 48) for _ in range(4)}
        hostile = {self._add(spec, 400) for spec in others}
        start = time.thread_time()
        while plain:
            events = [event for event in self.engine.step() if isinstance(event, Delta) and event.finish is not None]
            plain -= {event.request_id for event in events}
        seconds = time.thread_time() - start
        for request_id in hostile:
            self.engine.abort(request_id)
        self.engine.step()
        return seconds

    def _add(self, spec: ConstraintSpec | None, max_tokens: int) -> str:
        request = self.request(DECODERS["ar"], spec, max_tokens)
        self.engine.add(request)
        return request.id


def slowed_by(bench: Bench, count: int) -> float:
    """Four streams beside expensive grammars, compared with the same streams beside unconstrained requests."""
    specs = [compile_response_format(ResponseFormat(FormatKind.REGEX, pattern)) for pattern in HOSTILE]
    hostile = [specs[i % len(specs)] for i in range(count)]
    pairs = [(bench.neighbours([None] * count), bench.neighbours(list(hostile))) for _ in range(REPEATS)]
    return round(min(after for _, after in pairs) / min(before for before, _ in pairs), 3)


def endless(specs: list[ConstraintSpec]) -> Iterator[ConstraintSpec | None]:
    while True:
        yield from specs


def spec_of(schema: Any) -> ConstraintSpec:
    return compile_response_format(ResponseFormat(FormatKind.JSON_SCHEMA, schema, layout=Layout.SPACED))


def compare(bench: Bench, kinds: dict[str, list[ConstraintSpec]], num_tokens: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, decoder in DECODERS.items():
        plain = bench.decode(decoder, iter(lambda: None, 0), num_tokens)
        found[name] = {"unconstrained": plain.report()}
        for kind, specs in kinds.items():
            tally = bench.decode(decoder, endless(specs), num_tokens)
            found[name][kind] = {
                **tally.report(),
                "time_per_token_ratio": round((tally.seconds / tally.tokens) / (plain.seconds / plain.tokens), 3),
                "fewer_forwards": round((tally.tokens / tally.forwards) / (plain.tokens / plain.forwards), 3),
                "mask_cost_ratio": round(tally.seconds / (tally.seconds - tally.grammar_s), 3),
            }
            print(name, kind, found[name][kind], flush=True)
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("schemas", type=Path)
    words.add_argument("--model", default="nano")
    words.add_argument("--weights", default="int8")
    words.add_argument("--tokens", type=int, default=320)
    words.add_argument("--threads", type=int, default=1)
    words.add_argument("--out", type=Path, default=ROOT / "results")
    args = words.parse_args()
    schemas = usable_schemas(args.schemas)
    random.Random(0).shuffle(schemas)
    kinds = {
        "real schemas": [spec_of(s) for s in schemas[:24]],
        "closed schemas": [spec_of(s) for s in CLOSED.values()],
    }
    bench = Bench(args.model, args.weights, args.threads)
    slowed = {f"hostile {n}": slowed_by(bench, n) for n in (1, 2, 4)}
    print(slowed, flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    now = datetime.now(UTC)
    found = {
        "date": now.date().isoformat(),
        "commit": commit,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("llguidance", "torch")},
        "settings": {"model": args.model, "weights": args.weights, "threads": torch.get_num_threads(), "batch": BATCH},
        "slowed_by": slowed,
        **compare(bench, kinds, args.tokens),
    }
    path = args.out / f"constrain-engine-{now.date()}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
