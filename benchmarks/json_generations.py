"""Thousands of constrained generations through the whole server, in this process: every finished answer must be valid.

    python -m benchmarks.json_generations SCHEMAS.jsonl[.xz] [--count 5200] [--budget-s 500] [--batch 24]

HTTP routes, compile pool, engine thread and final check are the real ones; only sockets are left out. Runs for
`--budget-s`, appends to a journal under .build/, and goes on from there the next time; when all cases are done it
writes a dated result. Each answer is judged here once more with jsonschema-rs. `--model random` has nano's tokenizer
and random weights: it asks for everything a grammar allows, and costs a CPU next to nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.generation_cases import Case, is_small, make_case
from benchmarks.json_schemas import read
from quicksilver.constrain.compile.pool import CompilePool
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.source import FormatKind, Layout, ResponseFormat
from quicksilver.constrain.validate import validate_output
from quicksilver.core import EngineClient
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.load import LoadConfig, load_transformer
from quicksilver.errors import InvalidGrammar
from quicksilver.hub.resolve import resolve
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.worker.async_engine import AsyncEngine
from tests.support.canvas_adapters import new_canvas

ROOT = Path(__file__).parent
FINISHED = ("stop", "tool_calls")
RANDOM = "random"


@dataclass
class Answer:
    """A complete reply, streamed or not."""

    content: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish: str = ""
    error: str = ""
    tokens: int = 0

    def add(self, part: dict[str, Any], finish: str | None) -> None:
        self.content += part.get("content") or ""
        for call in part.get("tool_calls") or ():
            if call["index"] == len(self.calls):
                self.calls.append([call["function"]["name"], ""])
            self.calls[call["index"]][1] += call["function"].get("arguments") or ""
        self.finish = finish or self.finish


def read_reply(reply: httpx.Response) -> Answer:
    answer = Answer()
    if reply.status_code != 200:
        answer.error = f"{reply.status_code} {reply.text[:300]}"
        return answer
    if reply.headers["content-type"].startswith("application/json"):
        whole = reply.json()
        answer.add(whole["choices"][0]["message"], whole["choices"][0]["finish_reason"])
        answer.tokens = whole["usage"]["completion_tokens"]
        return answer
    for line in reply.text.splitlines():
        if line.startswith("data: {"):
            read_event(answer, json.loads(line[6:]))
    return answer


def read_event(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        answer.error = str(event["error"])[:300]
    for choice in event.get("choices", ()):
        answer.add(choice["delta"], choice["finish_reason"])
    if event.get("usage"):
        answer.tokens = event["usage"]["completion_tokens"]


def fault_of(case: Case, answer: Answer) -> str | None:
    """Why an answer is invalid, or None."""
    if case.needs_call and not answer.calls:
        return "no call came"
    if case.schema is not None:
        return validate_output(case.schema, answer.content)
    faults = (validate_output(case.arguments[name], arguments) for name, arguments in answer.calls)
    return next((fault for fault in faults if fault), None)


def judge(case: Case, answer: Answer) -> dict[str, Any]:
    fault = answer.error or fault_of(case, answer)
    return {
        "index": case.index,
        "kind": case.kind,
        "decoder": case.decoder,
        "stream": case.body["stream"],
        "temperature": case.body["temperature"],
        "finish": "error" if answer.error else answer.finish,
        "tokens": answer.tokens,
        "fault": fault,
    }


@asynccontextmanager
async def served(engine: EngineClient, tokenizer: Tokenizer, home: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server around an engine; no sockets."""
    async with CompilePoolContext() as pool:
        template = ChatTemplate.for_tokenizer(tokenizer)
        app = build_app(Services(engine, tokenizer, template, pool, None, ServerConfig(home=home)))
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
            yield client


class CompilePoolContext(CompilePool):
    async def __aenter__(self) -> CompilePool:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def run_case(client: httpx.AsyncClient, case: Case) -> dict[str, Any]:
    body = dict(case.body)
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    try:
        answer = read_reply(await client.post("/v1/chat/completions", json=body))
    except Exception as error:
        answer = Answer(error=f"{type(error).__name__}: {error}"[:300])
    return judge(case, answer)


async def run_cases(
    client: httpx.AsyncClient, cases: Iterable[Case], batch: int, deadline: float = math.inf
) -> AsyncIterator[dict[str, Any]]:
    """Yield outcomes as they finish, with `batch` in flight. No request starts after the deadline."""
    waiting = iter(cases)
    running: set[asyncio.Task[dict[str, Any]]] = set()
    while True:
        while len(running) < batch and time.monotonic() < deadline:
            case = next(waiting, None)
            if case is None:
                break
            running.add(asyncio.create_task(run_case(client, case)))
        if not running:
            return
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            yield task.result()


def usable_schemas(path: Path) -> list[Any]:
    """Small schemas that compile with a guarantee. Other schemas are refused and cannot be generated from."""
    kept = []
    for entry in read(path):
        if is_small(entry["schema"]):
            try:
                compile_response_format(ResponseFormat(FormatKind.JSON_SCHEMA, entry["schema"], layout=Layout.SPACED))
            except InvalidGrammar:
                continue
            kept.append(entry["schema"])
    return kept


def read_journal(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    finished = [row for row in rows if row["finish"] in FINISHED]
    cut = [row for row in rows if row["finish"] == "length"]
    refused = [row for row in rows if row["finish"] == "error" and row["fault"].startswith("400 ")]
    errors = [row for row in rows if row["finish"] == "error" and row not in refused]
    invalid = [row for row in finished if row["fault"]]
    tally = {
        name: dict(Counter(str(row[name]) for row in rows)) for name in ("kind", "decoder", "stream", "temperature")
    }
    return {
        "generations": len(rows),
        "finished": len(finished),
        "finished_valid": len(finished) - len(invalid),
        "finished_valid_share": 1 - len(invalid) / max(len(finished), 1),
        "at_the_limit": len(cut),
        "at_the_limit_valid": sum(row["fault"] is None for row in cut),
        "refused": len(refused),
        "errors": len(errors),
        "tokens": sum(row["tokens"] for row in rows),
        "by": tally,
        "faults": [*invalid, *errors, *refused][:20],
    }


def open_engine(model: str, weights: str, threads: int) -> tuple[AsyncEngine, Tokenizer]:
    """A catalogue model on the CPU with grammars, on its own thread."""
    checkpoint = resolve("nano" if model == RANDOM else model)
    tokenizer = Tokenizer.for_model(checkpoint.weights, checkpoint.skill)
    load = LoadConfig(device="cpu", weights=weights, threads=threads)
    network = random_network() if model == RANDOM else load_transformer(checkpoint, load)
    torch.set_num_threads(threads)
    engine = build_engine(network, model, EngineConfig(kv_bytes=1 << 29))
    engine.constraints = Grammars(tokenizer.to_json(), tokenizer.eos_ids, engine.info.vocab_size).constraint
    return AsyncEngine(engine), tokenizer


def random_network() -> Transformer:
    """Two narrow layers over nano's vocabulary; weights spread enough that the choice of tokens is."""
    torch.manual_seed(0)
    config = ModelConfig("llama", 2, 32, 64, 4, 2, 8, vocab_size=49_152, context_len=4_096, tied_head=True)
    network = Transformer(config)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    attach_canvas(network, new_canvas(config, rank=4, max_canvas_len=32, seed=0))
    return network.eval().requires_grad_(False)


async def run(args: argparse.Namespace, cases: Sequence[Case], journal: Path) -> None:
    engine, tokenizer = open_engine(args.model, args.weights, args.threads)
    deadline = time.monotonic() + args.budget_s
    with journal.open("a") as sink:
        async with served(engine, tokenizer, journal.parent) as http:
            async for row in run_cases(http, cases, args.batch, deadline):
                sink.write(json.dumps(row) + "\n")
                sink.flush()
    await engine.close()


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("schemas", type=Path)
    words.add_argument("--model", default="nano")
    words.add_argument("--weights", default="int8")
    words.add_argument("--threads", type=int, default=1)
    words.add_argument("--count", type=int, default=5_200)
    words.add_argument("--batch", type=int, default=24)
    words.add_argument("--budget-s", type=float, default=500)
    words.add_argument("--journal", type=Path, help="default: one for each model under .build/")
    words.add_argument("--out", type=Path, default=ROOT / "results")
    args = words.parse_args()
    args.journal = args.journal or ROOT.parent / ".build" / f"json_generations-{args.model}.jsonl"
    args.journal.parent.mkdir(exist_ok=True)
    done = {row["index"] for row in read_journal(args.journal)}
    schemas = usable_schemas(args.schemas)
    cases = [make_case(i, schemas) for i in range(args.count) if i not in done]
    asyncio.run(run(args, cases, args.journal))
    rows = read_journal(args.journal)
    print(json.dumps(summarise(rows), indent=1))
    if len(rows) >= args.count:
        write_result(args, rows, len(schemas))


def write_result(args: argparse.Namespace, rows: Sequence[dict[str, Any]], num_schemas: int) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    now = datetime.now(UTC)
    settings = {"model": args.model, "weights": args.weights, "batch": args.batch, "schemas": num_schemas}
    found = {
        "date": now.date().isoformat(),
        "commit": commit,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("llguidance", "jsonschema-rs", "torch")},
        "settings": settings,
        **summarise(rows),
    }
    path = args.out / f"json-generations-{args.model}-{now.date()}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
