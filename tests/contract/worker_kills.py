"""Kills the engine worker under open, paid streams, and compares every stream and the ledger with undisturbed runs.

    python -m tests.contract.worker_kills --kills 300 --streams 32

Tiny random weights in a real worker process (forked, so that it starts quickly), the whole server with accounts and
grammars in this one. Streams use every decoder, greedy and sampled, with JSON schemas and tools. Prints a JSON summary
and exits with 1 if a stream differs from its undisturbed run, ends with an error, or is not charged exactly once for
what it reports.
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import KeyDraft, Limits
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import Accounts, AdminService
from quicksilver.constrain.compile.pool import CompilePool
from tests.contract.worker_server import WorkerServer, worker_server
from tests.support.small_tokenizer import VOCAB_SIZE
from tests.worker.fork_server import fork_server

CHAT = "/v1/chat/completions"
# A request survives three kills.
MAX_KILLS_PER_ROUND = 3
DECODERS = ("ar", "verify", "confidence", "edit")
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


def body_of(number: int) -> dict[str, Any]:
    """A streamed chat: four decoders, each with free text, JSON and tools, greedy or sampled."""
    decoder, form = DECODERS[number % 4], number // 4 % 3
    body: dict[str, Any] = {
        "model": "nano",
        "messages": [{"role": "user", "content": f"request {number}"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        "seed": number,
        "temperature": 0.0 if number % 3 else 1.0,
        "decoder": {"name": decoder, "canvas_len": 8, "threshold": 0.5},
    }
    extra: tuple[dict[str, Any], ...] = ({}, {"response_format": FORMAT}, {"tools": [TOOL], "tool_choice": "required"})
    return {**body, **extra[form]}


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
    def text(self) -> tuple[str, str, str | None, int]:
        return self.content, self.calls, self.finish, self.usage.get("completion_tokens", -1)


async def read_stream(client: httpx.AsyncClient, number: int, began: asyncio.Event) -> Stream:
    stream = Stream()
    async with client.stream("POST", CHAT, json=body_of(number)) as reply:
        stream.error = "" if reply.status_code == 200 else f"status {reply.status_code}"
        async for line in reply.aiter_lines():
            began.set()
            stream.take(line)
    return stream


@dataclass
class Outcome:
    streams: list[Stream] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)

    def compare(self, expected: list[Stream], found: list[Stream]) -> None:
        self.streams += found
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            if other.error or not other.is_done:
                self.faults.append(f"stream {number} ended with {other.error or 'no [DONE]'}")
            elif one.text != other.text:
                self.faults.append(f"stream {number} differs: {one.text!r} and {other.text!r}")


async def kill(server: WorkerServer) -> float:
    """Kills the worker and returns the seconds until the next one is ready."""
    assert server.engine.worker_pid is not None
    started = time.monotonic()
    os.kill(server.engine.worker_pid, signal.SIGKILL)
    while server.engine.is_ready:
        await asyncio.sleep(0.005)
    while not server.engine.is_ready:
        await asyncio.sleep(0.02)
    return time.monotonic() - started


async def run_round(
    server: WorkerServer, client: httpx.AsyncClient, num_streams: int, kills: int, chance: random.Random
) -> tuple[list[Stream], list[float]]:
    began = [asyncio.Event() for _ in range(num_streams)]
    readers = [asyncio.create_task(read_stream(client, i, event)) for i, event in enumerate(began)]
    if kills:
        await asyncio.gather(*(event.wait() for event in began))
    seconds = []
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.0, 0.3))
        # A request that is in two fatal steps without advancing between them counts as their cause.
        while any(pending.is_suspect for pending in server.engine._unfinished()):
            await asyncio.sleep(0.01)
        seconds.append(await kill(server))
    return await asyncio.gather(*readers), seconds


async def run(server: WorkerServer, key: str, num_kills: int, num_streams: int, seed: int) -> Outcome:
    outcome, chance = Outcome(), random.Random(seed)
    limits = httpx.Limits(max_connections=num_streams)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=300, limits=limits) as client:
        expected, _ = await run_round(server, client, num_streams, 0, chance)
        outcome.compare(expected, expected)
        while len(outcome.ready_s) < num_kills:
            kills = min(MAX_KILLS_PER_ROUND, num_kills - len(outcome.ready_s))
            found, seconds = await run_round(server, client, num_streams, kills, chance)
            outcome.compare(expected, found)
            outcome.ready_s += seconds
    stats = await server.rest()
    if stats.free_pages != server.engine.info.num_pages:
        outcome.faults.append(f"{server.engine.info.num_pages - stats.free_pages} pages are still held")
    return outcome


def ledger_faults(admin: AdminService, streams: list[Stream]) -> list[str]:
    """Every stream has one settled row with the tokens that it reported, and the accounts add up."""
    with admin.store.read() as connection:
        rows = connection.execute(select(ledger)).all()
    found = Counter(row.request_id for row in rows)
    by_id = {row.request_id: row for row in rows}
    faults = [str(one) for one in audit(admin.store)]
    faults += [f"{row.request_id} is {row.state}" for row in rows if row.state != "settled"]
    faults += [] if len(rows) == len(streams) else [f"{len(rows)} rows for {len(streams)} streams"]
    for stream in streams:
        row = by_id.get(stream.id)
        if row is None or found[stream.id] != 1:
            faults.append(f"{stream.id} has {found[stream.id]} rows")
        elif row.output_tokens != stream.usage.get("completion_tokens"):
            faults.append(f"{stream.id}: {row.output_tokens} tokens charged, {stream.usage} reported")
    return faults


def make_key(admin: AdminService) -> str:
    org = admin.organizations.create_org(OPERATOR, "kills")
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    return admin.keys.create_key(OPERATOR, KeyDraft("kills", project.id)).secret


@asynccontextmanager
async def paid_server(home: Path) -> AsyncIterator[tuple[WorkerServer, Accounts]]:
    config = AccountsConfig(home / "pepper", key_limits=Limits(), signup_credits=10**12)
    accounts, grammars = await Accounts.open(f"sqlite:///{home}/books.db", config), CompilePool()
    await grammars.start()
    try:
        async with fork_server(*WORKER) as forks, worker_server(home, forks.start, accounts, grammars) as server:
            yield server, accounts
    finally:
        await grammars.stop()
        await accounts.close()


async def kill_and_compare(home: Path, num_kills: int, num_streams: int, seed: int = 1) -> dict[str, Any]:
    async with paid_server(home) as (server, accounts):
        key = await accounts.admin(make_key)
        outcome = await run(server, key, num_kills, num_streams, seed)
        faults = await accounts.admin(lambda admin: ledger_faults(admin, outcome.streams))
    migrated = [stream.usage.get("quicksilver", {}).get("migrated", 0) for stream in outcome.streams]
    return {
        "kills": num_kills,
        "streams_open_at_a_kill": num_streams,
        "streams": len(outcome.streams),
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
    parser.add_argument("--report", type=Path, help="file for the summary; standard output without it")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home:
        figures = asyncio.run(kill_and_compare(Path(home), options.kills, options.streams, options.seed))
    figures |= {"cores": os.cpu_count(), "load_before": round(load, 1)}
    text = json.dumps(figures, indent=2)
    if options.report:
        options.report.write_text(text + "\n")
    else:
        sys.stdout.write(text + "\n")
    return int(figures["stream_faults"] + figures["ledger_faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
