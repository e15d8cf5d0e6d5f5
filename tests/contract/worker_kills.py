"""Kills the engine worker under open, paid streams, and compares every stream and the ledger with undisturbed runs.

    python -m tests.contract.worker_kills --kills 300 --streams 32 [--family wedlm-7b] [--poison]

Tiny random weights in a real worker process (forked, so that it starts quickly), the whole server with accounts and
grammars in this one. Streams use every decoder of the model, greedy and sampled, with JSON schemas and tools. With
`--poison` each round has one more stream, which itself ends every worker that computes it. Prints a JSON summary and
exits with 1 if a stream differs from its undisturbed run, ends with an error, or is not charged exactly once for what
it reports, or if a poison request does not fail. A continued `canvas` answer under a grammar may differ, since its soft
embeddings end with the worker; it must have valid JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
from sqlalchemy import select

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import KeyDraft, Limits
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import Accounts, AdminService
from quicksilver.constrain.compile.pool import CompilePool
from quicksilver.errors import EngineDied, RowFailed
from quicksilver.evals.report import machine_facts
from quicksilver.worker.pending import MAX_MIGRATIONS
from tests.contract.worker_server import WorkerServer, worker_server
from tests.support.small_tokenizer import VOCAB_SIZE
from tests.worker.fork_server import fork_server

CHAT = "/v1/chat/completions"
# The decoders of a plain model, and of models of two other families.
DECODERS: dict[str, tuple[dict[str, Any], ...]] = {
    "": tuple({"name": name, "canvas_len": 8, "threshold": 0.5} for name in ("ar", "verify", "confidence", "edit")),
    "wedlm-7b": ({"name": "window", "canvas_len": 8, "entropy_bound": 3.0},),
    "diffusion-gemma": ({"name": "canvas", "canvas_len": 8, "steps": 4, "entropy_bound": 4.0},),
}
# In the prompt of a request that ends workers.
POISON = "poison"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "kinds": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "kinds"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
WORKER = ("--forward-s", "0.01", "--num-pages", "2048", "--vocab-size", str(VOCAB_SIZE))


def body_of(number: int, family: str = "", text: str = "request") -> dict[str, Any]:
    """A streamed chat: every decoder with free text, JSON and tools, greedy or sampled."""
    decoders = DECODERS[family]
    form = number // len(decoders) % 3
    body: dict[str, Any] = {
        "model": "nano",
        "messages": [{"role": "user", "content": f"{text} {number}"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        "seed": number,
        "temperature": 1.0 if number % 5 < 2 else 0.0,
        "decoder": decoders[number % len(decoders)],
    }
    extra: tuple[dict[str, Any], ...] = ({}, {"response_format": FORMAT}, {"tools": [TOOL], "tool_choice": "required"})
    return {**body, **extra[form]}


def poison_of(number: int, family: str) -> dict[str, Any]:
    """A request that ends workers: every decoder in turn, with a schema, so that no answer is complete before that."""
    turn, decoder = divmod(number, len(DECODERS[family]))
    free_text = body_of(3 * len(DECODERS[family]) * turn + decoder, family, POISON)
    return {**free_text, "response_format": FORMAT}


@dataclass
class Stream:
    """What one client received."""

    id: str = ""
    content: str = ""
    calls: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    is_done: bool = False
    error: str = ""

    def take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.is_done = True
        elif line.startswith("data: "):
            chunk = json.loads(line.removeprefix("data: "))
            self.error = self.error or json.dumps(chunk.get("error") or "").strip('"')
            self.id = chunk.get("id", self.id)
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk.get("choices", ()):
                self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        self.content += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            self.calls += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
        self.finish = choice["finish_reason"] or self.finish

    @property
    def has_valid_json(self) -> bool:
        """Whether the answer, or the arguments of its call, satisfy the schema."""
        try:
            return jsonschema_rs.is_valid(SCHEMA, json.loads(self.content or self.calls.removeprefix("find")))
        except ValueError:
            return False

    @property
    def text(self) -> tuple[str, str, str | None, int]:
        return self.content, self.calls, self.finish, self.usage.get("completion_tokens", -1)


async def read_stream(client: httpx.AsyncClient, body: dict[str, Any], began: asyncio.Event) -> Stream:
    stream = Stream()
    async with client.stream("POST", CHAT, json=body) as reply:
        async for line in reply.aiter_lines():
            began.set()
            stream.error += "" if reply.status_code == 200 else line
            stream.take(line)
    return stream


@dataclass
class Outcome:
    streams: list[Stream] = field(default_factory=list)
    poisons: list[Stream] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)

    def compare(
        self, expected: list[Stream], found: list[Stream], may_differ: Callable[[int], bool] = lambda number: False
    ) -> None:
        self.streams += found
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            if other.error or not other.is_done:
                self.faults.append(f"stream {number} ended with {other.error or 'no [DONE]'}")
            elif one.text != other.text and not (may_differ(number) and other.has_valid_json):
                self.faults.append(f"stream {number} differs: {one.text!r} and {other.text!r}")

    def check_poison(self, stream: Stream) -> None:
        self.poisons.append(stream)
        if not any(code in stream.error for code in (RowFailed.code, EngineDied.code)):
            self.faults.append(f"a poison request ended with {stream.error or stream.finish}")


async def kill(server: WorkerServer) -> float:
    """Kills the worker and returns the seconds until the next one is ready."""
    started = time.monotonic()
    assert server.engine.worker_pid is not None
    os.kill(server.engine.worker_pid, signal.SIGKILL)
    while server.engine.is_ready:
        await asyncio.sleep(0.005)
    while not server.engine.is_ready:
        await asyncio.sleep(0.02)
    return time.monotonic() - started


@dataclass(frozen=True)
class Plan:
    kills: int
    streams: int
    seed: int = 1
    family: str = ""
    has_poison: bool = False

    @property
    def kills_per_round(self) -> int:
        """A request survives three workers. A poison request ends one in a step that it shares with others."""
        return MAX_MIGRATIONS - self.has_poison

    def may_differ(self, number: int) -> bool:
        body = body_of(number, self.family)
        return body["decoder"]["name"] == "canvas" and ("tools" in body or "response_format" in body)

    @property
    def worker_options(self) -> tuple[str, ...]:
        return (*WORKER, *(("--family", self.family) if self.family else ()), "--die-on-text", POISON)


async def run_round(
    server: WorkerServer,
    client: httpx.AsyncClient,
    bodies: list[dict[str, Any]],
    kills: int,
    chance: random.Random,
    poison: list[dict[str, Any]],
) -> tuple[list[Stream], list[float]]:
    """The streams of `bodies` and then those of `poison`, which are opened when the others have begun: a request that
    arrives while a worker starts is refused."""
    began = [asyncio.Event() for _ in bodies]
    readers = [asyncio.create_task(read_stream(client, *each)) for each in zip(bodies, began, strict=True)]
    if kills:
        await asyncio.gather(*(event.wait() for event in began))
    readers += [asyncio.create_task(read_stream(client, body, asyncio.Event())) for body in poison]
    seconds = []
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.0, 0.3))
        # A request that is in two fatal steps without advancing between them counts as their cause.
        while not server.engine.is_ready or any(pending.is_suspect for pending in server.engine._unfinished()):
            await asyncio.sleep(0.01)
        seconds.append(await kill(server))
    return await asyncio.gather(*readers), seconds


async def run(server: WorkerServer, key: str, plan: Plan) -> Outcome:
    outcome, chance = Outcome(), random.Random(plan.seed)
    bodies = [body_of(number, plan.family) for number in range(plan.streams)]
    limits = httpx.Limits(max_connections=plan.streams + 1)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=300, limits=limits) as client:
        expected, _ = await run_round(server, client, bodies, 0, chance, [])
        outcome.compare(expected, expected)
        while len(outcome.ready_s) < plan.kills:
            kills = min(plan.kills_per_round, plan.kills - len(outcome.ready_s))
            poison = [poison_of(len(outcome.poisons), plan.family)] if plan.has_poison else []
            found, seconds = await run_round(server, client, bodies, kills, chance, poison)
            outcome.compare(expected, found[: plan.streams], plan.may_differ)
            for stream in found[plan.streams :]:
                outcome.check_poison(stream)
            outcome.ready_s += seconds
    stats = await server.rest()
    if stats.free_pages != server.engine.info.num_pages:
        outcome.faults.append(f"{server.engine.info.num_pages - stats.free_pages} pages are still held")
    return outcome


def ledger_faults(admin: AdminService, streams: list[Stream], poisons: list[Stream]) -> list[str]:
    """Every stream has one settled row with the tokens that it reported, every poison request one that is not open, and
    the accounts add up."""
    with admin.store.read() as connection:
        rows = connection.execute(select(ledger)).all()
    found = Counter(row.request_id for row in rows)
    by_id = {row.request_id: row for row in rows}
    faults = [str(one) for one in audit(admin.store)]
    faults += [f"{row.request_id} is open" for row in rows if row.state == "open"]
    # A poison request that failed before its first chunk has no id.
    least = len(streams) + sum(bool(stream.id) for stream in poisons)
    if not least <= len(rows) <= len(streams) + len(poisons):
        faults.append(f"{len(rows)} rows for {len(streams)} streams and {len(poisons)} poison requests")
    faults += [f"{one.id} has {found[one.id]} rows" for one in poisons if one.id and found[one.id] != 1]
    for stream in streams:
        row = by_id.get(stream.id)
        if row is None or found[stream.id] != 1 or row.state != "settled":
            faults.append(f"{stream.id} has {found[stream.id]} rows, state {row.state if row else 'none'}")
        elif row.output_tokens != stream.usage.get("completion_tokens"):
            faults.append(f"{stream.id}: {row.output_tokens} tokens charged, {stream.usage} reported")
    return faults


def make_key(admin: AdminService) -> str:
    org = admin.organizations.create_org(OPERATOR, "kills")
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    return admin.keys.create_key(OPERATOR, KeyDraft("kills", project.id)).secret


@asynccontextmanager
async def paid_server(home: Path, worker_options: tuple[str, ...]) -> AsyncIterator[tuple[WorkerServer, Accounts]]:
    config = AccountsConfig(home / "pepper", key_limits=Limits(), signup_credits=10**12)
    accounts, grammars = await Accounts.open(f"sqlite:///{home}/books.db", config), CompilePool()
    await grammars.start()
    try:
        async with (
            fork_server(*worker_options) as forks,
            worker_server(home, forks.start, accounts, grammars) as server,
        ):
            yield server, accounts
    finally:
        await grammars.stop()
        await accounts.close()


async def kill_and_compare(home: Path, plan: Plan) -> dict[str, Any]:
    async with paid_server(home, plan.worker_options) as (server, accounts):
        key = await accounts.admin(make_key)
        outcome = await run(server, key, plan)
        faults = await accounts.admin(lambda admin: ledger_faults(admin, outcome.streams, outcome.poisons))
    migrated = [stream.usage.get("quicksilver", {}).get("migrated", 0) for stream in outcome.streams]
    return {
        "family": plan.family or "plain",
        "decoders": [decoder["name"] for decoder in DECODERS[plan.family]],
        "kills": plan.kills,
        "streams_open_at_a_kill": plan.streams,
        "streams": len(outcome.streams),
        "poison_requests": len(outcome.poisons),
        "continued": sum(count > 0 for count in migrated),
        "continuations": sum(migrated),
        "stream_faults": len(outcome.faults),
        "ledger_faults": len(faults),
        "examples": [*outcome.faults, *faults][:10],
        "ready_again_s": {
            "p50": round(statistics.median(outcome.ready_s), 2),
            "max": round(max(outcome.ready_s), 2),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=DECODERS, default="", help="of the model; a plain one without it")
    parser.add_argument("--poison", action="store_true", help="add a request that ends workers to each round")
    parser.add_argument("--report", type=Path, help="file for the summary; standard output without it")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home:
        plan = Plan(options.kills, options.streams, options.seed, options.family, options.poison)
        figures = asyncio.run(kill_and_compare(Path(home), plan))
    figures |= {**machine_facts(), "seed": options.seed, "cores": os.cpu_count(), "load_before": round(load, 1)}
    text = json.dumps(figures, indent=2)
    if options.report:
        options.report.write_text(text + "\n")
    else:
        sys.stdout.write(text + "\n")
    return int(figures["stream_faults"] + figures["ledger_faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
