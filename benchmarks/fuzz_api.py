"""Fuzz the HTTP API with schemathesis: our own document with every check, or OpenAI's for the operations we serve.

    python benchmarks/fuzz_api.py                      our document, about 20,000 cases
    python benchmarks/fuzz_api.py --cases 50           a short run
    python benchmarks/fuzz_api.py --openai SPEC.json   OpenAI's document: no 5xx, nothing slower than 10 s

The engine is scripted, so what is tested is everything in front of it. Exits with 1 when anything is found; --save adds
the run to `results/fuzz_api-DATE.json`. Other seeds are other fuzzed cases, so a long run can be made in pieces.
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
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SERVED = ("/chat/completions", "/completions", "/models", "/models/{model}", "/responses")
MODELS = ["nano", "mercury-2", "mercury-coder"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1600, help="fuzzed cases per operation")
    parser.add_argument("--openai", type=Path, help="OpenAI's OpenAPI document, .json or .json.xz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(folder)
        try:
            url = server.stdout.readline().strip()
            document = openai_document(options.openai) if options.openai else own_document(url)
            spec = Path(folder, "spec.json")
            spec.write_text(json.dumps(document))
            base = f"{url}/v1" if options.openai else url
            checks = "not_a_server_error" if options.openai else "all"
            return run(spec, base, checks, options)
        finally:
            server.stdin.close()
            server.wait(20)


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


def run(spec: Path, url: str, checks: str, options: argparse.Namespace) -> int:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", str(spec), "--url", url, "--checks", checks,
        "--max-examples", str(options.cases), "--seed", str(options.seed), "--request-timeout", "10",
        "--max-response-time", "10", "--phases", options.phases, "--continue-on-failure",
        # Some refusals cannot be said in JSON Schema: an edit without a region, an id beyond the vocabulary.
        "--exclude-checks", "positive_data_acceptance",
    ]  # fmt: skip
    started = time.monotonic()
    with subprocess.Popen(command, cwd=spec.parent, text=True, stdout=subprocess.PIPE) as process:
        lines = [print_line(line) for line in process.stdout]
    figures = {
        "document": "openai" if options.openai else "own",
        "cases": next((int(m[1]) for line in lines if (m := re.search(r"(\d+) generated", line))), 0),
        "exit": process.returncode,
        "checks": checks,
        "seed": options.seed,
        "phases": options.phases,
        "seconds": round(time.monotonic() - started),
    }
    if options.save:
        save(figures)
    print(json.dumps(figures))
    return int(process.returncode != 0)


def save(figures: dict[str, Any]) -> None:
    """Append a run to the results of the day. Exit code 0 means no findings."""
    path = ROOT / "benchmarks" / "results" / f"fuzz_api-{date.today()}.json"
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
