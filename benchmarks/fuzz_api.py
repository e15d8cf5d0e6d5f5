"""Fuzz the HTTP API with schemathesis: our own document with every check, or OpenAI's for the operations we serve.

    python -m benchmarks.fuzz_api --cases 50                      our document, a short run
    python -m benchmarks.fuzz_api --openai SPEC.json              OpenAI's document: no 5xx, nothing slower than 10 s
    python -m benchmarks.fuzz_api --series --openai SPEC.json     the runs of the published result: our document, then
                                                                  with nine seeds, then OpenAI's

The engine is scripted, so what is tested is everything in front of it. Exits with 1 when anything is found; --out adds
the runs to `fuzz_api-DATE.json` in that folder. Other seeds are other fuzzed cases, so a long run can be made in
pieces.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SERVED = ("/chat/completions", "/completions", "/models", "/models/{model}", "/responses")
MODELS = ["nano", "mercury-2", "mercury-coder"]
ALL_PHASES = "examples,coverage,fuzzing,stateful"


@dataclass(frozen=True)
class Run:
    """One run of schemathesis; `cases` are the fuzzed ones per operation."""

    document: str
    seed: int
    phases: str
    cases: int


SERIES = (
    Run("own", 1, "examples,coverage", 1),
    *(Run("own", seed, "fuzzing,stateful", 30) for seed in range(1, 10)),
    Run("openai", 1, ALL_PHASES, 1600),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1600, help="fuzzed cases per operation")
    parser.add_argument("--openai", type=Path, help="OpenAI's OpenAPI document, .json or .json.xz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default=ALL_PHASES)
    parser.add_argument("--series", action="store_true", help="the runs of the published result; needs --openai")
    parser.add_argument("--out", type=Path, help="folder for the figures")
    options = parser.parse_args()
    if options.series and options.openai is None:
        parser.error("--series needs --openai")
    single = Run("openai" if options.openai else "own", options.seed, options.phases, options.cases)
    codes = [run(one, options.openai, options.out) for one in (SERIES if options.series else (single,))]
    return max(codes)


def run(one: Run, openai: Path | None, out: Path | None) -> int:
    """Run against a server of its own. Returns 1 if something was found."""
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(folder)
        try:
            url = server.stdout.readline().strip()
            document = own_document(url) if one.document == "own" else openai_document(openai)
            spec = Path(folder, "spec.json")
            spec.write_text(json.dumps(document))
            figures = fuzz(spec, url if one.document == "own" else f"{url}/v1", one)
        finally:
            server.stdin.close()
            server.wait(20)
    if out is not None:
        save(figures, out)
    print(json.dumps(figures), flush=True)
    return int(figures["exit"] != 0)


def start_server(folder: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.contract.live", folder]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def own_document(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/openapi.json") as reply:
        document: dict[str, Any] = json.load(reply)
    for schema in document["components"]["schemas"].values():
        if schema.get("properties", {}).get("model", {}).get("maxLength") == 256:
            pin_model(schema)
    return document


def openai_document(path: Path) -> dict[str, Any]:
    """OpenAI's document, reduced to what we serve."""
    raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    document: dict[str, Any] = json.loads(raw)
    document["paths"] = {
        path: {method: operation for method, operation in operations.items() if is_served(path, method)}
        for path, operations in document["paths"].items()
        if path in SERVED
    }
    for name in ("CreateChatCompletionRequest", "CreateCompletionRequest", "ModelIdsResponses", "ModelIdsShared"):
        if name in document["components"]["schemas"]:
            pin_model(document["components"]["schemas"][name])
    return document


def pin_model(schema: dict[str, Any]) -> None:
    """Insert existing model names, so that cases pass the lookup."""
    if "properties" not in schema and "allOf" not in schema:
        schema.clear()
        schema["enum"] = MODELS
    for part in (schema, *schema.get("allOf", ())):
        if "model" in part.get("properties", {}):
            part["properties"]["model"] = {"enum": MODELS}


def is_served(path: str, method: str) -> bool:
    return method == ("get" if path.startswith("/models") else "post")


def fuzz(spec: Path, url: str, one: Run) -> dict[str, Any]:
    checks = "all" if one.document == "own" else "not_a_server_error"
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", str(spec), "--url", url, "--checks", checks,
        "--max-examples", str(one.cases), "--seed", str(one.seed), "--request-timeout", "10",
        "--max-response-time", "10", "--phases", one.phases, "--continue-on-failure",
        # Some refusals cannot be said in JSON Schema: an edit without a region, an id beyond the vocabulary.
        "--exclude-checks", "positive_data_acceptance",
    ]  # fmt: skip
    started = time.monotonic()
    with subprocess.Popen(command, cwd=spec.parent, text=True, stdout=subprocess.PIPE) as process:
        lines = [print_line(line) for line in process.stdout]
    return {
        "document": one.document,
        "cases": next((int(m[1]) for line in lines if (m := re.search(r"(\d+) generated", line))), 0),
        "exit": process.returncode,
        "checks": checks,
        "seed": one.seed,
        "phases": one.phases,
        "seconds": round(time.monotonic() - started),
    }


def save(figures: dict[str, Any], out: Path) -> None:
    """Append a run to the results of the day. Exit code 0 means no findings."""
    path = out / f"fuzz_api-{date.today()}.json"
    machine = {"date": str(date.today()), "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    report = json.loads(path.read_text()) if path.exists() else {**machine, "cases": 0, "runs": []}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    report["runs"].append({**figures, "commit": commit.strip()})
    report["cases"] = sum(run["cases"] for run in report["runs"])
    path.write_text(json.dumps(report, indent=2) + "\n")


def print_line(line: str) -> str:
    print(line, end="", flush=True)
    return line


if __name__ == "__main__":
    sys.exit(main())
