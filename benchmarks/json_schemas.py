"""How many real schemas compile under each policy, and whether anything invalid gets through the mask.

    python -m benchmarks.json_schemas SCHEMAS.jsonl[.xz] [--walks 4] [--out benchmarks/results]

The file has one object a line: `name`, `schema`, and `tests` with `data` and `valid`. Grammars are walked over bytes,
so no tokenizer is needed. "Written" texts are random lawful bytes, checked against the schema as it was sent.
"""

from __future__ import annotations

import argparse
import json
import lzma
import platform
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llguidance import LLMatcher

from quicksilver.constrain.alphabet import plain_alphabet
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.trial_compile import LIMITS
from quicksilver.constrain.runtime.digits import digits_left
from quicksilver.constrain.runtime.unique import Matcher, Quotes, guarded
from quicksilver.constrain.source import FormatKind, Policy, ResponseFormat
from quicksilver.constrain.validate import validate_output
from quicksilver.errors import InvalidGrammar

ALPHABET = plain_alphabet([])
MAX_BYTES = 300


@dataclass
class Tally:
    """Outcomes of all schemas under one policy."""

    schemas: int = 0
    compiled: int = 0
    needing_check: int = 0
    valid_instances: int = 0
    valid_refused: int = 0
    invalid_instances: int = 0
    invalid_taken: int = 0
    invalid_taken_without_need_of_check: int = 0
    written: int = 0
    written_invalid: int = 0
    written_invalid_without_need_of_check: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    compile_ms: list[float] = field(default_factory=list)


def read(path: Path) -> Iterator[dict[str, Any]]:
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt") as lines:
        for line in lines:
            yield json.loads(line)


def judge(tally: Tally, entry: dict[str, Any], policy: Policy, rng: random.Random, num_walks: int) -> None:
    tally.schemas += 1
    start = time.perf_counter()
    try:
        spec = compile_response_format(ResponseFormat(FormatKind.JSON_SCHEMA, entry["schema"], policy))
    except InvalidGrammar as refusal:
        tally.refusals[keyword_of(refusal.message)] += 1
        return
    finally:
        tally.compile_ms.append(1e3 * (time.perf_counter() - start))
    tally.compiled += 1
    tally.needing_check += spec.needs_validation
    automaton = LLMatcher(ALPHABET.tokenizer, spec.grammar, log_level=0, limits=LIMITS)
    matcher = guarded(automaton, spec.grammar, Quotes(ALPHABET.texts))
    for test in entry["tests"]:
        is_taken = takes(matcher.deep_copy(), test["data"])
        tally.valid_instances += test["valid"]
        tally.invalid_instances += not test["valid"]
        tally.valid_refused += test["valid"] and not is_taken
        is_wrong = is_taken and not test["valid"]
        tally.invalid_taken += is_wrong
        tally.invalid_taken_without_need_of_check += is_wrong and not spec.needs_validation
    for _ in range(num_walks):
        text = write(matcher.deep_copy(), rng)
        is_wrong = text is not None and validate_output(entry["schema"], text) is not None
        tally.written += text is not None
        tally.written_invalid += is_wrong
        tally.written_invalid_without_need_of_check += is_wrong and not spec.needs_validation


def keyword_of(message: str) -> str:
    """The first word in backticks."""
    parts = message.split("`")
    return parts[1] if len(parts) > 1 else message[:60]


def takes(matcher: Matcher, instance: Any) -> bool:
    text = json.dumps(instance, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    ids = ALPHABET.spell(text) or []
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def write(matcher: Matcher, rng: random.Random) -> str | None:
    """Write random allowed bytes, biased towards completion. None if the text does not end or the automaton fails."""
    written = bytearray()
    while len(written) < MAX_BYTES and not matcher.is_error():
        if matcher.is_stopped() or (matcher.is_accepting() and rng.random() < 0.3):
            return written.decode()
        lawful = allowed_bytes(matcher, bytes(written[-64:]))
        if not lawful:
            return written.decode() if matcher.is_accepting() else None
        closers = [byte for byte in lawful if byte in b'"}],:']
        is_eager = closers and rng.random() < (0.9 if len(written) > MAX_BYTES // 3 else 0.35)
        byte = rng.choice(closers if is_eager else lawful)
        matcher.consume_token(ALPHABET.byte_ids[byte])
        written.append(byte)
    return None


def allowed_bytes(matcher: Matcher, tail: bytes) -> list[int]:
    bits = matcher.compute_bitmask()
    lawful = [byte for byte, i in ALPHABET.byte_ids.items() if bits[i >> 3] >> (i & 7) & 1]
    left = digits_left(tail)
    if left is not None and left <= 0 and ord("z") not in lawful:
        lawful = [byte for byte in lawful if byte not in b"0123456789"]
    return lawful


def summary(tally: Tally) -> dict[str, Any]:
    times = sorted(tally.compile_ms)
    return {
        **{name: value for name, value in asdict(tally).items() if name not in ("compile_ms", "refusals")},
        "compiled_share": round(tally.compiled / tally.schemas, 4),
        "refusals": dict(tally.refusals.most_common()),
        "compile_ms": {
            "median": round(statistics.median(times), 2),
            "p99": round(times[int(0.99 * len(times))], 2),
            "worst": round(times[-1], 2),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--walks", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("llguidance", "jsonschema-rs")},
    }
    for policy in Policy:
        tally, rng = Tally(), random.Random(0)
        for entry in read(options.schemas):
            judge(tally, entry, policy, rng, options.walks)
        report[policy.value] = summary(tally)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"json-schemas-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
