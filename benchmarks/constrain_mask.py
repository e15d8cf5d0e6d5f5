"""What a grammar costs a decode step, question by question, and how much of JSON is certain without a model.

    python -m benchmarks.constrain_mask SCHEMAS.jsonl[.xz] [--tokenizer FILE.json[.xz]] [--schemas 150] [--out DIR]

Valid instances are written as a model would write them that means just this text: certain tokens come from the grammar,
each other token is the one that the tokenizer's own spelling has there and would cost a forward. Beside the forwards
stand the tokens of the same text as the tokenizer cuts it, which plain decoding would write one by one.
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
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.matcher import GrammarConstraint, Grammars
from quicksilver.constrain.runtime.tokens import Tokens
from quicksilver.constrain.source import FormatKind, Layout, ResponseFormat
from quicksilver.errors import InvalidGrammar
from quicksilver.hub.resolve import resolve
from quicksilver.text.tokenizer import Tokenizer

EOS_ID = 0
VOCAB_SIZE = 49_152
# `max_tokens` of the requests, large enough that the completion budget does not matter.
ROOM = 4_096
DRAFT_LEN = 16
LAYOUTS = {Layout.SPACED: (", ", ": "), Layout.COMPACT: (",", ":")}


@dataclass
class Costs:
    """Microseconds per operation, and how the tokens of the instances were produced."""

    bitmask: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    forced: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    closing: list[float] = field(default_factory=list)
    build: list[float] = field(default_factory=list)
    num_instances: int = 0
    # Tokens of the instances in the tokenizer's own segmentation.
    num_tokens: int = 0
    # Tokens that a model would have to choose.
    num_forwards: int = 0
    ratios: list[float] = field(default_factory=list)


def timed(times: list[float], ask: Callable[..., Any], *arguments: Any) -> Any:
    """Run an operation and record its processor time, which other load affects less than wall time."""
    start = time.thread_time_ns()
    result = ask(*arguments)
    times.append(1e-3 * (time.thread_time_ns() - start))
    return result


def follow(constraint: GrammarConstraint, text: bytes, tokens: Tokens, costs: Costs) -> int | None:
    """Write `text` token by token with the queries of the engine. Returns the number of chosen tokens, or None if
    refused."""
    row = np.zeros((1, tokens.num_words), dtype=np.int32)
    at = num_chosen = 0
    while at < len(text):
        taken = timed(costs.forced, constraint.forced)
        if not taken:
            draft = tokens.encode(text[at:])[:DRAFT_LEN]
            timed(costs.bitmask, constraint.write_masks, [], row.data)
            timed(costs.draft, constraint.legal_prefix, draft)
            taken = draft[:1]
            num_chosen += 1
        if constraint.legal_prefix(taken) < len(taken):
            return None
        timed(costs.commit, constraint.advance, taken)
        timed(costs.closing, constraint.closing, ROOM)
        spelled = b"".join(tokens.text(token_id) for token_id in taken)
        if not text.startswith(spelled, at):
            return None
        at += len(spelled)
    return num_chosen


def measure(grammars: Grammars, entries: list[dict[str, Any]], layout: Layout) -> Costs:
    costs, tokens = Costs(), grammars._tokens
    for entry in entries:
        instance = next((test["data"] for test in entry["tests"] if test["valid"]), None)
        if instance is None:
            continue
        try:
            spec = compile_response_format(ResponseFormat(FormatKind.JSON_SCHEMA, entry["schema"], layout=layout))
        except InvalidGrammar:
            continue
        text = json.dumps(instance, ensure_ascii=False, separators=LAYOUTS[layout]).encode()
        constraint = timed(costs.build, grammars.constraint, spec)
        num_chosen = follow(constraint, text, tokens, costs)
        if num_chosen is not None:
            num_tokens = len(tokens.encode(text))
            costs.num_instances += 1
            costs.num_tokens += num_tokens
            costs.num_forwards += num_chosen
            costs.ratios.append(num_tokens / max(num_chosen, 1))
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
    return {
        **{name: spread(getattr(costs, name)) for name in names},
        "step_us": round(step, 1),
        "instances": costs.num_instances,
        "tokens": costs.num_tokens,
        "forwards": costs.num_forwards,
        "tokens_per_forward": round(costs.num_tokens / costs.num_forwards, 3),
        "tokens_per_forward_median_instance": round(statistics.median(costs.ratios), 3),
    }


def read_tokenizer(path: Path | None) -> str:
    if path is None:
        nano = resolve("nano")
        return Tokenizer.for_model(nano.weights, nano.skill).to_json()
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        return file.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="default: that of nano")
    parser.add_argument("--schemas", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    grammars = Grammars(read_tokenizer(options.tokenizer), [EOS_ID], VOCAB_SIZE)
    entries = list(read(options.entries))
    random.Random(0).shuffle(entries)
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("llguidance", "numpy")},
        **{str(layout): report(measure(grammars, entries[: options.schemas], layout)) for layout in LAYOUTS},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"constrain-mask-{found['date']}.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
