"""The Berkeley Function-Calling Leaderboard's AST categories through the whole server: calls must be valid, always.

    python -m benchmarks.bfcl [--each 10] [--model nano] [--budget-s 500]

Data and checker are PyPI's bfcl-eval, which is installed into .build/bfcl if it is missing. Every tool of every entry
is compiled; `--each` entries of a category, evenly spread, are answered by the model. Calls are judged twice: against
the tool's schema with jsonschema-rs, which must always hold, and by the leaderboard's own checker, which is the model's
accuracy. Goes on from its journal under .build/ when it was stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks.generation_cases import Case
from benchmarks.json_generations import ROOT, open_engine, read_journal, read_reply, served
from quicksilver.constrain.compile.tools import compile_tools
from quicksilver.constrain.source import ToolCallFormat, ToolChoice, ToolSignature, ToolTags
from quicksilver.constrain.validate import validate_output
from quicksilver.errors import InvalidGrammar

HOME = ROOT.parent / ".build" / "bfcl"
PACKAGE, VERSION = "bfcl-eval", "2026.3.23"
CATEGORIES = (
    "simple_python", "multiple", "parallel", "parallel_multiple",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
)  # fmt: skip
# Type names of the leaderboard that differ from JSON Schema.
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "bool": "boolean", "any": None}
WORDS = {"properties", "items", "enum", "required", "description", "type", "default", "minItems", "maxItems"}
MAX_TOKENS = 160


def install() -> None:
    """From PyPI, unless this version is installed. Its dependencies, the packages of model providers, are left out."""
    if not (HOME / f"bfcl_eval-{VERSION}.dist-info").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(HOME)]
        subprocess.run([*command, f"{PACKAGE}=={VERSION}"], check=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_category(name: str) -> list[dict[str, Any]]:
    """Entries with their accepted answers."""
    data = HOME / "bfcl_eval" / "data"
    entries = read_lines(data / f"BFCL_v4_{name}.json")
    truths = {
        line["id"]: line["ground_truth"] for line in read_lines(data / "possible_answer" / f"BFCL_v4_{name}.json")
    }
    return [{**entry, "truth": truths[entry["id"]], "category": name} for entry in entries]


def to_schema(described: Any) -> Any:
    """A parameter description as JSON Schema."""
    if not isinstance(described, dict):
        return {}
    schema = {word: value for word, value in described.items() if word in WORDS}
    kind = TYPES.get(schema.get("type", ""), schema.get("type"))
    schema.pop("type", None)
    if kind is not None:
        schema["type"] = kind
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {name: to_schema(part) for name, part in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = to_schema(schema["items"])
    if kind == "array" and "enum" in schema:  # what is listed are the items, as the descriptions say
        schema["items"] = {**schema.get("items", {}), "enum": schema.pop("enum")}
    return schema


def to_tools(functions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert to OpenAI tools. Dots in names are replaced; the leaderboard's checker accepts that."""
    return [
        {
            "type": "function",
            "function": {
                "name": function["name"].replace(".", "_"),
                "description": function.get("description", ""),
                "parameters": to_schema(function["parameters"]),
            },
        }
        for function in functions
    ]


def compile_all(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compile the tools of every entry. Counts how many have a grammar, and how many grammars alone guarantee valid
    arguments."""
    refused, num_proved = [], 0
    for entry in entries:
        tools = [tool["function"] for tool in to_tools(entry["function"])]
        plan = tuple(ToolSignature(tool["name"], tool["parameters"]) for tool in tools)
        try:
            spec = compile_tools(ToolCallFormat(plan, ToolTags("<tool_call>", "</tool_call>"), ToolChoice.REQUIRED))
        except InvalidGrammar as refusal:
            refused.append({"id": entry["id"], "reason": refusal.message[:200]})
        else:
            num_proved += not spec.needs_validation
    return {"entries": len(entries), "compiled": len(entries) - len(refused), "proved": num_proved, "refused": refused}


def load_checker() -> Any:
    """Import the leaderboard's checker without the model packages that its module imports."""
    sys.path.insert(0, str(HOME))
    zoo = ModuleType("bfcl_eval.constants.model_config")
    zoo.MODEL_CONFIG_MAPPING = {"quicksilver": SimpleNamespace(underscore_to_dot=True)}  # type: ignore[attr-defined]
    sys.modules[zoo.__name__] = zoo
    from bfcl_eval.constants.enums import Language  # type: ignore[import-not-found]
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # type: ignore[import-not-found]

    return lambda entry, calls: ast_checker(
        entry["function"], calls, entry["truth"], Language.PYTHON, entry["category"], "quicksilver"
    )


def make_case(entry: dict[str, Any]) -> Case:
    tools = to_tools(entry["function"])
    body = {
        "model": "nano",
        "messages": entry["question"][0],
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": "parallel" in entry["category"],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "decoder": {"name": "ar", "canvas_len": 1},
        "stream": False,
    }
    arguments = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    return Case(0, "tools", "ar", body, arguments=arguments, needs_call=True)


async def answer(http: Any, entry: dict[str, Any], check: Any) -> dict[str, Any]:
    case = make_case(entry)
    found = read_reply(await http.post("/v1/chat/completions", json=case.body))
    faults = [validate_output(case.arguments[name], arguments) for name, arguments in found.calls]
    whole = [json.loads(arguments) for (_, arguments), fault in zip(found.calls, faults, strict=True) if fault is None]
    calls = [{name: arguments} for (name, _), arguments in zip(found.calls, whole, strict=False)]
    is_right = bool(calls) and all(fault is None for fault in faults) and check(entry, calls)["valid"]
    return {
        "id": entry["id"],
        "category": entry["category"],
        "finish": found.finish,
        "error": found.error,
        "calls": len(found.calls),
        "valid": sum(fault is None for fault in faults),
        "faults": [fault for fault in faults if fault],
        "right": bool(is_right),
    }


async def run(args: argparse.Namespace, entries: Sequence[dict[str, Any]], journal: Path) -> None:
    check, deadline = load_checker(), time.monotonic() + args.budget_s
    engine, tokenizer = open_engine(args.model, args.weights, args.threads)
    slots = asyncio.Semaphore(args.batch)

    async def one(entry: dict[str, Any]) -> None:
        async with slots:
            if time.monotonic() < deadline:
                row = await answer(http, entry, check)
                sink.write(json.dumps(row) + "\n")
                sink.flush()

    with journal.open("a") as sink:
        async with served(engine, tokenizer, journal.parent) as http:
            await asyncio.gather(*(one(entry) for entry in entries))
    await engine.close()


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def of(some: Sequence[dict[str, Any]]) -> dict[str, Any]:
        finished = [row for row in some if row["finish"] == "tool_calls"]
        return {
            "entries": len(some),
            "finished": len(finished),
            "calls_finished": sum(row["calls"] for row in finished),
            "calls_finished_valid": sum(row["valid"] for row in finished),
            "without_call": sum(not row["calls"] for row in some),
            "errors": sum(bool(row["error"]) for row in some),
            "accuracy": round(sum(row["right"] for row in some) / max(len(some), 1), 3),
        }

    return {"all": of(rows), **{name: of([row for row in rows if row["category"] == name]) for name in CATEGORIES}}


def pick(entries: Sequence[dict[str, Any]], each: int) -> list[dict[str, Any]]:
    """`each` evenly spaced entries, or all if there are no more."""
    stride = max(len(entries) / max(each, 1), 1)
    return [entries[int(i * stride)] for i in range(min(each, len(entries)))]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--model", default="nano")
    words.add_argument("--weights", default="int8")
    words.add_argument("--threads", type=int, default=1)
    words.add_argument("--each", type=int, default=10)
    words.add_argument("--batch", type=int, default=8)
    words.add_argument("--budget-s", type=float, default=500)
    words.add_argument("--journal", type=Path, default=ROOT.parent / ".build" / "bfcl.jsonl")
    words.add_argument("--out", type=Path, default=ROOT / "results")
    args = words.parse_args()
    install()
    categories = {name: read_category(name) for name in CATEGORIES}
    chosen = [entry for entries in categories.values() for entry in pick(entries, args.each)]
    done = {row["id"] for row in read_journal(args.journal)}
    asyncio.run(run(args, [entry for entry in chosen if entry["id"] not in done], args.journal))
    rows = read_journal(args.journal)
    print(json.dumps(summarise(rows), indent=1))
    if len(rows) >= len(chosen):
        compiled = compile_all([entry for entries in categories.values() for entry in entries])
        write_result(args, rows, compiled)


def write_result(args: argparse.Namespace, rows: Sequence[dict[str, Any]], compiled: dict[str, Any]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    now = datetime.now(UTC)
    found = {
        "date": now.date().isoformat(),
        "commit": commit,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("llguidance", "jsonschema-rs", "torch")},
        "data": f"{PACKAGE} {VERSION}",
        "settings": {"model": args.model, "weights": args.weights, "each": args.each, "max_tokens": MAX_TOKENS},
        "compiled": compiled,
        **summarise(rows),
    }
    path = args.out / f"bfcl-{now.date()}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
