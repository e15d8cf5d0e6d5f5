"""What a grammar costs a decode step, next to a forward of the same machine, and how much of JSON is determined by it.

    python -m benchmarks.constrain_mask TOKENIZER.json[.xz] SCHEMAS.jsonl[.xz] [--schemas 150] [--out DIR]

Valid instances are written token by token. A step is what the engine does for one request: forced tokens, a bitmask, a
check of the drafted tokens, the commit, and the question of closing. The forward is a stand-in with the matrix products
of a 135M model in fp32; the ratio is (forward + a step for each request) / forward.
"""

from __future__ import annotations

import argparse
import json
import lzma
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.json_schemas import read
from quicksilver.constrain.matcher import Constraint, Grammars
from quicksilver.constrain.schema import compile_response_format
from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.errors import InvalidGrammar

EOS_ID = 0
BATCH = 8
ROOM = 512
"""`max_tokens` of the requests."""
DRAFT_LEN = 16
LAYERS = 30
LAYER = ((576, 960), (576, 576), (576, 3072), (1536, 576))
HEAD = (576, 49152)


@dataclass
class Costs:
    """Microseconds of each question, and how the tokens of the instances came about."""

    bitmask: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    forced: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    closing: list[float] = field(default_factory=list)
    build: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_forced: int = 0
    num_single: int = 0
    """Tokens, not forced, at which the bitmask left no choice."""


def timed(times: list[float], ask: Callable[..., Any], *arguments: Any) -> Any:
    start = time.perf_counter()
    result = ask(*arguments)
    times.append(1e6 * (time.perf_counter() - start))
    return result


def follow(constraint: Constraint, tokens: list[int], num_words: int, costs: Costs) -> None:
    """Writes `tokens` one by one, asking at each what the engine would ask."""
    row = np.zeros((1, num_words), dtype=np.int32)
    at = 0
    while at < len(tokens):
        taken = timed(costs.forced, constraint.forced)
        if taken and tokens[at : at + len(taken)] == taken:
            costs.num_forced += len(taken)
        else:
            timed(costs.bitmask, constraint.write_masks, [], row.data)
            timed(costs.draft, constraint.legal_prefix, tokens[at : at + DRAFT_LEN])
            costs.num_single += int(np.unpackbits(row.view(np.uint8)).sum()) == 1
            taken = tokens[at : at + 1]
        if constraint.legal_prefix(taken) < len(taken):
            return
        timed(costs.commit, constraint.advance, taken)
        timed(costs.closing, constraint.closing, ROOM - at)
        costs.num_tokens += len(taken)
        at += len(taken)


def forward_us(rows: int) -> float:
    """The least of several runs of a stand-in forward."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape, dtype=np.float32) for shape in LAYER]
    head = rng.standard_normal(HEAD, dtype=np.float32)
    inputs = {width: rng.standard_normal((rows, width), dtype=np.float32) for width in (576, 1536)}
    times: list[float] = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(LAYERS):
            for weight in weights:
                inputs[weight.shape[0]] @ weight
        inputs[576] @ head
        times.append(1e6 * (time.perf_counter() - start))
    return min(times)


def measure(grammars: Grammars, entries: list[dict[str, Any]], num_words: int) -> Costs:
    costs = Costs()
    tokenizer = grammars._tokens.tokenizer
    for entry in entries:
        try:
            spec = compile_response_format(ResponseFormat(FormatKind.JSON_SCHEMA, entry["schema"]))
        except InvalidGrammar:
            continue
        instance = next((test["data"] for test in entry["tests"] if test["valid"]), None)
        if instance is None:
            continue
        constraint = timed(costs.build, grammars.constraint, spec)
        follow(constraint, tokenizer.tokenize_str(json.dumps(instance, separators=(",", ":"))), num_words, costs)
    return costs


def spread(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "mean_us": round(statistics.fmean(times), 1),
        "median_us": round(statistics.median(times), 1),
        "p99_us": round(times[int(0.99 * len(times))], 1),
    }


def report(costs: Costs) -> dict[str, Any]:
    names = ("bitmask", "draft", "forced", "commit", "closing", "build")
    step = sum(statistics.fmean(getattr(costs, name)) for name in names[:-1])
    forward = forward_us(BATCH)
    steps = costs.num_tokens - costs.num_forced
    return {
        **{name: spread(getattr(costs, name)) for name in names},
        "step_us": round(step, 1),
        "forward_us": round(forward, 1),
        "batch": BATCH,
        "time_ratio": round((forward + BATCH * step) / forward, 3),
        "tokens": costs.num_tokens,
        "forced_share": round(costs.num_forced / costs.num_tokens, 3),
        "single_choice_share": round(costs.num_single / costs.num_tokens, 3),
        "tokens_per_forward_by_forcing": round(costs.num_tokens / steps, 2),
        "tokens_per_forward_with_single_choices": round(costs.num_tokens / (steps - costs.num_single), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("entries", type=Path)
    parser.add_argument("--schemas", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    opener = lzma.open if options.tokenizer.suffix == ".xz" else open
    with opener(options.tokenizer, "rt") as file:
        grammars = Grammars(file.read(), [EOS_ID], HEAD[1])
    entries = list(read(options.entries))
    random.Random(0).shuffle(entries)
    costs = measure(grammars, entries[: options.schemas], HEAD[1] // 32)
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("llguidance", "numpy")},
        **report(costs),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"constrain-mask-{found['date']}.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
