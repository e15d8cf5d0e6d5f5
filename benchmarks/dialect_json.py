"""JSON schemas and tool calls on every diffusion dialect: random networks under token masks, each answer validated.

    python -m benchmarks.dialect_json [--count 200] [--tools 50] [--dialect NAME] [--batch 25] [--out FILE]

Each dialect has a tiny network with random weights, so the text asks for everything that a grammar allows. The schemas
are random too: case i depends on i only. Every answer must be complete and valid, whatever decoder wrote it; the exit
status is 1 if one is not. The default takes minutes on two cores. `--out` writes the counts of each dialect as soon as
it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.generation_cases import WHOLE, WORD, closed
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.tools import compile_tools
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.source import (
    FormatKind,
    ResponseFormat,
    ToolCallFormat,
    ToolChoice,
    ToolSignature,
    ToolTags,
)
from quicksilver.constrain.validate import validate_output
from quicksilver.core import ConstraintSpec, DecodeParams, FinishReason, Request
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from tests.support.dialects import DISTINCT, dialect_decoders, dialect_model
from tests.support.small_tokenizer import SPECIALS, VOCAB_SIZE, small_tokenizer
from tests.support.tiny import answers, finish_all

# Tokens of an answer, one per byte. The shortest text of every schema and call below is shorter.
MAX_TOKENS = 224
NAMES = ("id", "kind", "ok", "n", "tags", "at", "note", "x")
PATTERNS = ("^[a-f0-9]{4}$", "^(up|down)[0-9]?$", "^#[0-9a-f]{3}$")
SPECIAL_IDS = {name: 256 + at for at, name in enumerate(SPECIALS)}
TAGS = ToolTags(SPECIAL_IDS["<tool_call>"], SPECIAL_IDS["</tool_call>"])


def random_schema(rng: random.Random, depth: int = 2) -> Any:
    """A closed schema: scalars, and objects, arrays and alternatives of at most `depth` levels."""
    if depth == 0 or rng.random() < 0.3:
        return _scalar(rng)
    kind = rng.choice(("object", "object", "array", "anyOf", "optional", "tuple"))
    if kind == "array":
        low = rng.randrange(3)
        items = random_schema(rng, depth - 1)
        return {"type": "array", "items": items, "minItems": low, "maxItems": low + rng.randrange(3)}
    if kind == "tuple":
        items = [_scalar(rng) for _ in range(rng.randrange(1, 4))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if kind == "anyOf":
        return {"anyOf": [{"type": "null"}, closed(a=_scalar(rng)), {"type": "array", "items": WHOLE, "maxItems": 2}]}
    names = rng.sample(NAMES, rng.randrange(1, 4))
    schema = closed(**{name: random_schema(rng, depth - 1) for name in names})
    return {**schema, "required": names[:1]} if kind == "optional" else schema


def _scalar(rng: random.Random) -> Any:
    low = rng.randrange(-50, 50)
    return rng.choice((
        {"type": "boolean"}, {"type": "null"}, WORD, WHOLE, {"const": rng.choice(("on", 7, None, True))},
        {"type": "integer", "minimum": low, "maximum": low + rng.randrange(200)},
        {"type": "number", "minimum": 0, "maximum": 9}, {"enum": rng.sample(["red", "green", "blue", 1, 2, False], 3)},
        {"type": "string", "minLength": 1, "maxLength": rng.randrange(1, 8)},
        {"type": "string", "pattern": rng.choice(PATTERNS)}, {"type": "string", "format": rng.choice(("date", "uuid"))},
    ))  # fmt: skip


def schema_of(index: int) -> Any:
    return random_schema(random.Random(index))


def tools_of(index: int) -> tuple[ToolSignature, ...]:
    rng = random.Random(-index - 1)
    return tuple(
        ToolSignature(name, closed(**{key: random_schema(rng, 1) for key in rng.sample(NAMES, 2)}), is_strict=True)
        for name in rng.sample(("search", "set_alarm", "now", "send"), rng.randrange(1, 4))
    )


@cache
def schema_spec(index: int) -> ConstraintSpec:
    return compile_response_format(ResponseFormat(FormatKind.JSON_SCHEMA, schema_of(index)))


@cache
def tools_spec(index: int) -> ConstraintSpec:
    return compile_tools(ToolCallFormat(tools_of(index), TAGS, ToolChoice.REQUIRED, max_calls=1))


def check_schema(index: int, tokens: Sequence[int]) -> str | None:
    """Why an answer does not match its schema; None if it does."""
    return validate_output(schema_of(index), bytes(tokens).decode())


def check_tools(index: int, tokens: Sequence[int]) -> str | None:
    if not tokens or (tokens[0], tokens[-1]) != (TAGS.open, TAGS.close):
        return "the answer is not one call between its tags"
    branches = [
        {"properties": {"name": {"const": tool.name}, "arguments": tool.parameters}} for tool in tools_of(index)
    ]
    return validate_output({"anyOf": branches}, bytes(tokens[1:-1]).decode())


CHECKS = {"schema": (schema_spec, check_schema), "tools": (tools_spec, check_tools)}


def open_engine(dialect: str) -> Engine:
    """A tiny random network of the dialect over a vocabulary of bytes."""
    model = dialect_model(dialect, vocab_size=VOCAB_SIZE + 8)
    engine = build_engine(model, dialect, EngineConfig(num_pages=640, max_rows=512, context_len=400))
    tokenizer = small_tokenizer()
    engine.constraints = Grammars(tokenizer.to_json(), tokenizer.eos_ids, model.config.vocab_size).constraint
    return engine


def faults(dialect: str, kind: str, indices: Sequence[int], batch: int = 25) -> Iterator[str]:
    """Runs the cases, `batch` at a time, with all decoders of the dialect in turn. Yields a line for each fault."""
    engine, (spec_of, check) = open_engine(dialect), CHECKS[kind]
    decoders = list(dialect_decoders(dialect).items())
    for start in range(0, len(indices), batch):
        here = indices[start : start + batch]
        for i in here:
            engine.add(_request(i, decoders[i % len(decoders)][1], spec_of(i)))
        deltas = finish_all(engine)
        found = answers(deltas)
        for i in here:
            last, tokens = deltas[str(i)][-1], found[str(i)]
            done = last.finish in (FinishReason.STOP, FinishReason.LENGTH)
            reason = check(i, tokens) if done else str(last.error)
            if reason is not None:
                label = decoders[i % len(decoders)][0]
                yield f"{dialect}, {label}, {kind} {i}: {reason}: {bytes(t for t in tokens if t < 256)!r}"


def _request(index: int, params: DecodeParams, spec: ConstraintSpec) -> Request:
    eos_ids = small_tokenizer().eos_ids
    sampled = replace(params, max_new_tokens=MAX_TOKENS, seed=index, stop_ids=eos_ids, temperature=index % 3 * 0.6)
    return Request(str(index), tuple(range(60, 73 + index % 7)), sampled, constraint=spec)


def _record(settings: dict[str, int], report: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The counts with everything that is needed to repeat them."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("llguidance", "jsonschema-rs", "torch")},
        "settings": settings,
        "answers": sum(row["schemas"] + row["tools"] for row in report.values()),
        "invalid": sum(row["invalid"] for row in report.values()),
        "dialects": report,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="schemas per dialect")
    parser.add_argument("--tools", type=int, default=50, help="sets of tools per dialect")
    parser.add_argument("--dialect", choices=DISTINCT, help="one dialect instead of all")
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--out", type=Path, help="a JSON file for the counts")
    options = parser.parse_args()
    settings = {"schemas": options.count, "tools": options.tools, "batch": options.batch, "max_tokens": MAX_TOKENS}
    report: dict[str, dict[str, Any]] = {}
    for dialect in [options.dialect] if options.dialect else DISTINCT:
        found = [*faults(dialect, "schema", range(options.count), options.batch)]
        found += faults(dialect, "tools", range(options.tools), options.batch)
        print(*found, sep="\n", end="\n" if found else "")
        counts = {"schemas": options.count, "tools": options.tools, "invalid": len(found)}
        report[dialect] = {**counts, "decoders": list(dialect_decoders(dialect)), "faults": found}
        print(json.dumps({dialect: counts}), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(_record(settings, report), indent=1) + "\n")
    return int(any(row["invalid"] for row in report.values()))


if __name__ == "__main__":
    sys.exit(main())
