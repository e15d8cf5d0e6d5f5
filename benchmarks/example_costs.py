"""Forwards of the applications in `examples/` under `ar` and `verify`, from what they print.

    python -m benchmarks.example_costs [--url http://127.0.0.1:8480] [--model nano] [--out benchmarks/results]

Each example runs in a process of its own, against a server that is started for it or the one at `--url`. Seconds are
meaningful on an idle machine only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.cpu_load import server
from quicksilver.evals.report import machine_facts

ROOT = Path(__file__).parents[1]
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


def measure(url: str, model: str) -> list[dict[str, Any]]:
    rows = []
    for example in EXAMPLES:
        name, *words = example.split()
        command = [sys.executable, "-m", f"examples.{name}", *words, "--url", url, "--model", model]
        printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows.append(read_costs(example, printed))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of a running server")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    with nullcontext(options.url) if options.url else server(ROOT, options.model) as url:
        rows = measure(url, options.model)
    report = {**machine_facts(), "model": options.model, "rows": rows}
    (options.out / f"examples-{options.model}-{report['date'][:10]}.json").write_text(
        json.dumps(report, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
