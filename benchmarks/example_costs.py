"""Forwards of the applications in `examples/` under `ar` and `verify`, from what they print.

    python -m benchmarks.example_costs --url http://127.0.0.1:8480 [--model nano] [--out benchmarks/results]

Each example runs in a process of its own against a running server. Seconds are meaningful on an idle machine only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from quicksilver.evals.report import machine_facts

EXAMPLES = (
    "agent_loop --steps 12",
    "rag",
    "invoices --count 4",
    "compact --entries 40",
    "transcript",
    "summary",
    "helpers",
    "coding_agent",
)
ROW = re.compile(
    r"^(ar|verify) +(\d+) calls +(\d+) tokens +(\d+) rounds +(\d+) forwards +[\d.]+ tokens/forward +([\d.]+) s$",
    re.MULTILINE,
)
NAMES = ("calls", "tokens", "rounds", "forwards")


def read_costs(example: str, printed: str) -> dict[str, Any]:
    """The two lines that every example prints, and whether the answers are the same."""
    rows = {
        decoder: {**dict(zip(NAMES, map(int, counts), strict=True)), "seconds": float(seconds)}
        for decoder, *counts, seconds in ROW.findall(printed)
    }
    if rows.keys() != {"ar", "verify"}:
        raise SystemExit(f"{example} printed no costs:\n{printed}")
    return {"example": example, **rows, "is_same": "same answers: yes" in printed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8480")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows = []
    for example in EXAMPLES:
        name, *words = example.split()
        command = [sys.executable, "-m", f"examples.{name}", *words, "--url", options.url, "--model", options.model]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows.append(read_costs(example, printed))
        print(rows[-1], flush=True)
    report = {**machine_facts(), "model": options.model, "rows": rows}
    (options.out / f"examples-{options.model}-{report['date'][:10]}.json").write_text(
        json.dumps(report, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
