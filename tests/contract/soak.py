"""A long run under random faults: worker kills, drains, database outages, slow readers, aborts.

    python -m tests.contract.soak --minutes 30 [--clients 12] [--report FILE]

The whole server with accounts and grammars is in this process, with a real worker process and tiny random weights. The
books are in PostgreSQL if its programs are installed, else in SQLite. A client sends each request with an
Idempotency-Key and repeats it until it is answered. Prints a JSON summary and exits with 1 if

- a request is lost: not answered at all, or cut off without an error;
- an answer differs from the undisturbed one, or is not charged exactly once for the tokens that it reports;
- a request ends in a way that the API does not declare;
- the ledger is inconsistent or keeps an open row, or the engine keeps pages;
- memory changes by more than 5 % after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import State
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import Accounts, AdminService
from quicksilver.evals.report import machine_facts
from tests.contract.soak_server import Books, Replica, soaked_server
from tests.contract.worker_kills import CHAT, Stream, body_of, kill, make_key

NUM_BODIES = 24
# Ends that the API declares; each invites to try again.
DECLARED = {
    "draining",
    "ledger_unavailable",
    "engine_unavailable",
    "engine_overloaded",
    "engine_died",
    "unavailable",
    "conflict",
}
MAX_TRIES_S = 120.0
OUTAGE_S, MIN_OUTAGE_PAUSE_S = 10.0, 40.0
WARM_UP_SHARE = 0.3
MAX_MEMORY_CHANGE = 0.05
# A reader with a small window makes the server wait.
SLOW_SOCKET = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]


@dataclass
class Tally:
    """What clients saw."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    # Reply id -> output tokens, of answers that arrived complete.
    complete: dict[str, int] = field(default_factory=dict)
    # Ids of attempts of one request after which it was tried again.
    repeated: dict[str, list[str]] = field(default_factory=dict)
    continued: int = 0

    def declare(self, code: str, where: str) -> None:
        self.ends[code] += 1
        if code not in DECLARED:
            self.faults.append(f"{where} ended with {code}")


class Client:
    """Sends requests until the end; `behave` is `normal`, `slow` or `abort`."""

    def __init__(self, http: httpx.AsyncClient, behave: str, expected: list[Stream], tally: Tally, seed: int) -> None:
        self._http, self._behave, self._expected, self._tally = http, behave, expected, tally
        self._chance = random.Random(seed)

    async def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self.request(self._chance.randrange(NUM_BODIES))
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))

    async def request(self, number: int) -> None:
        """One request, tried again after every declared refusal."""
        key, started, earlier, seen = uuid.uuid4().hex, time.monotonic(), list[str](), Counter[str]()
        deadline = started + MAX_TRIES_S
        while time.monotonic() < deadline:
            stream = await self._attempt(number, key)
            if stream is None:  # aborted by this client
                return
            if stream.is_done and not stream.error:
                self._finish(number, stream, earlier)
                return
            earlier += [stream.id] if stream.id else []
            seen[_code_in(stream.error) or "cut off"] += 1
            await asyncio.sleep(self._chance.uniform(0.2, 1.0))
        taken = time.monotonic() - started
        self._tally.faults.append(f"request {number} was not answered in {taken:.0f} s: {dict(seen)}, ids {earlier}")
        self._tally.ends["lost"] += 1

    def _finish(self, number: int, stream: Stream, earlier: list[str]) -> None:
        tally, expected = self._tally, self._expected[number]
        tally.ends["complete"] += 1
        tally.continued += stream.usage.get("quicksilver", {}).get("migrated", 0) > 0
        tally.complete[stream.id] = stream.usage["completion_tokens"]
        if earlier:
            tally.repeated[stream.id] = earlier
        if stream.text != expected.text:
            tally.faults.append(f"request {number} differs: {stream.text!r} and {expected.text!r}")

    async def _attempt(self, number: int, key: str) -> Stream | None:
        """What arrived; None if this client left. A refused connection is declared too: the server is restarting."""
        stream = Stream()
        stop_after = self._chance.randrange(1, 20) if self._behave == "abort" else 10**9
        try:
            headers = {"idempotency-key": key}
            async with self._http.stream("POST", CHAT, json=body_of(number), headers=headers) as reply:
                if reply.status_code != 200:
                    return await self._refused(reply, number)
                async for line in reply.aiter_lines():
                    stream.take(line)
                    stop_after -= 1
                    if stop_after == 0:
                        self._tally.ends["aborted by the client"] += 1
                        return None
                    if self._behave == "slow":
                        await asyncio.sleep(0.05)
        except httpx.ConnectError:
            self._tally.ends["connection refused"] += 1
            return stream
        except httpx.HTTPError as error:
            stream.error = type(error).__name__
        self._check_end(stream, number)
        return stream

    async def _refused(self, reply: httpx.Response, number: int) -> Stream:
        body = json.loads(await reply.aread())
        self._tally.declare(body["error"]["code"], f"request {number} ({reply.status_code})")
        if reply.status_code == 503 and "retry-after" not in reply.headers:
            self._tally.faults.append(f"request {number}: a 503 without Retry-After")
        return Stream(error=str(reply.status_code))

    def _check_end(self, stream: Stream, number: int) -> None:
        if stream.is_done and not stream.error:
            return
        code = "cut off" if not stream.error else _code_in(stream.error)
        self._tally.declare(code, f"stream {number}")


def _code_in(error: str) -> str:
    """The code of an error chunk, or the name of the client's own exception."""
    try:
        return str(json.loads(error)["code"])
    except (ValueError, TypeError, KeyError):
        return error


class Chaos:
    """One fault after another, at random; each must be over before the next begins."""

    def __init__(self, replica: Replica, books: Books, pause_s: float, seed: int) -> None:
        self._replica, self._books, self._pause_s = replica, books, pause_s
        self._chance = random.Random(seed)
        self._last_outage = time.monotonic()
        self.done: Counter[str] = Counter()
        self.longest_s: dict[str, float] = {}

    async def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self._pause_s)
            if not is_over():
                await self._one()

    async def _one(self) -> None:
        kind = self._chance.choices(("kill", "drain", "outage"), (6, 2, 2))[0]
        if kind == "outage" and time.monotonic() - self._last_outage < MIN_OUTAGE_PAUSE_S:
            kind = "kill"
        await self.inject(kind)

    async def inject(self, kind: str) -> None:
        self.done[kind] += 1
        started = time.monotonic()
        await self._inject(kind)
        self.longest_s[kind] = max(self.longest_s.get(kind, 0.0), round(time.monotonic() - started, 1))

    async def _inject(self, kind: str) -> None:
        if kind == "kill":
            # A request that is in two fatal steps without advancing between them counts as their cause.
            while any(pending.is_suspect for pending in self._replica.engine._unfinished()):
                await asyncio.sleep(0.01)
            await kill(self._replica.server)
        elif kind == "drain":
            # Replies that do not finish in time end with a declared error.
            self.done["drain over its time"] += not await self._replica.roll()
        else:
            await self._books.outage(OUTAGE_S)
            self._last_outage = time.monotonic()


class Memory:
    """Resident memory of this process, once a second."""

    def __init__(self) -> None:
        self.samples: list[int] = []

    async def watch(self) -> None:
        while True:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples.append(pages * os.sysconf("SC_PAGESIZE"))
            await asyncio.sleep(1.0)

    def summary(self) -> dict[str, float]:
        """Medians of the time after the warm-up: of its first quarter and of its last one."""
        settled = self.samples[int(WARM_UP_SHARE * len(self.samples)) :]
        quarter = max(1, len(settled) // 4)
        first, last = (statistics.median(part) / 2**20 for part in (settled[:quarter], settled[-quarter:]))
        change = last / first - 1
        return {"after_warm_up_mb": round(first, 1), "end_mb": round(last, 1), "change_pct": round(100 * change, 2)}


def ledger_faults(admin: AdminService, tally: Tally) -> list[str]:
    with admin.store.read() as connection:
        rows = connection.execute(select(ledger)).all()
    count, by_id = Counter(row.request_id for row in rows), {row.request_id: row for row in rows}
    faults = [str(one) for one in audit(admin.store)]
    faults += [f"{row.request_id} is open" for row in rows if row.state == State.OPEN]
    for reply_id, tokens in tally.complete.items():
        row = by_id.get(reply_id)
        if row is None or count[reply_id] != 1 or row.state != State.SETTLED:
            faults.append(f"{reply_id} has {count[reply_id]} rows, state {row.state if row else 'none'}")
        elif row.output_tokens != tokens:
            faults.append(f"{reply_id}: {row.output_tokens} tokens charged, {tokens} reported")
        for earlier in tally.repeated.get(reply_id, ()):
            if earlier != reply_id and earlier in by_id and by_id[earlier].output_tokens >= tokens:
                faults.append(f"{reply_id} and its attempt {earlier} are both charged in full")
    return faults


async def undisturbed(http: httpx.AsyncClient) -> list[Stream]:
    tally, streams = Tally(), []
    for number in range(NUM_BODIES):
        stream = await Client(http, "normal", [], tally, 0)._attempt(number, uuid.uuid4().hex)
        assert stream is not None
        assert stream.is_done, stream
        streams.append(stream)
    return streams


async def close_ledger(accounts: Accounts, seconds: float = 30.0) -> None:
    """Waits until no row is open: those of interrupted requests are closed by the heartbeat."""

    def num_open(admin: AdminService) -> int:
        with admin.store.read() as connection:
            return len(connection.execute(select(ledger.c.request_id).where(ledger.c.state == State.OPEN)).all())

    deadline = time.monotonic() + seconds
    while await accounts.admin(num_open) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)


async def soak(home: Path, minutes: float, num_clients: int, pause_s: float, seed: int) -> dict[str, Any]:
    books, tally, memory = Books(home), Tally(), Memory()
    try:
        async with soaked_server(home, books) as (replica, accounts):
            headers = {"authorization": f"Bearer {await accounts.admin(make_key)}"}
            options: dict[str, Any] = {"base_url": replica.server.url, "headers": headers, "timeout": 120}
            slow = httpx.AsyncHTTPTransport(socket_options=SLOW_SOCKET)
            async with httpx.AsyncClient(**options) as http, httpx.AsyncClient(**options, transport=slow) as slow_http:
                expected = await undisturbed(http)
                chaos = Chaos(replica, books, pause_s, seed)
                await run_clients((http, slow_http), expected, tally, memory, chaos, minutes * 60, num_clients, seed)
                await close_ledger(accounts)
                stats = await replica.server.rest()
            faults = await accounts.admin(lambda admin: ledger_faults(admin, tally))
            held = replica.engine.info.num_pages - stats.free_pages
    finally:
        books.close()
    faults += [f"{held} pages are still held"] if held else []
    used = memory.summary()
    if abs(used["change_pct"]) > 100 * MAX_MEMORY_CHANGE:
        faults.append(f"memory changed by {used['change_pct']} %")
    return report(tally, chaos, faults, used, books)


async def run_clients(
    https: tuple[httpx.AsyncClient, httpx.AsyncClient],
    expected: list[Stream],
    tally: Tally,
    memory: Memory,
    chaos: Chaos,
    seconds: float,
    num_clients: int,
    seed: int,
) -> None:
    over_at = time.monotonic() + seconds

    def is_over() -> bool:
        return time.monotonic() >= over_at

    kinds = ("normal", "normal", "normal", "slow", "abort")
    clients = []
    for number in range(num_clients):
        behave = kinds[number % len(kinds)]
        clients.append(Client(https[behave == "slow"], behave, expected, tally, seed + number))
    watching = asyncio.create_task(memory.watch())
    await asyncio.gather(chaos.run(is_over), *(client.run(is_over) for client in clients))
    watching.cancel()


def report(tally: Tally, chaos: Chaos, faults: list[str], used: dict[str, float], books: Books) -> dict[str, Any]:
    faults = [*tally.faults, *faults]
    return {
        "database": "PostgreSQL" if books.postgres else "SQLite",
        "faults_injected": dict(chaos.done),
        "longest_fault_s": chaos.longest_s,
        "requests_answered": tally.ends["complete"],
        "continued_in_another_worker": tally.continued,
        "answered_after_a_retry": len(tally.repeated),
        "ends": dict(tally.ends.most_common()),
        "lost": tally.ends["lost"] + tally.ends["cut off"],
        "faults": len(faults),
        "examples": faults[:10],
        "memory": used,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--pause-s", type=float, default=6.0, help="mean time between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="file for the summary; standard output without it")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home:
        found = asyncio.run(soak(Path(home), options.minutes, options.clients, options.pause_s, options.seed))
    settings = {"minutes": options.minutes, "clients": options.clients, "pause_s": options.pause_s,
                "seed": options.seed, "cores": os.cpu_count(), "load_before": round(load, 1)}  # fmt: skip
    found = {**machine_facts(), **settings, **found}
    summary = json.dumps(found, indent=2)
    if options.report:
        options.report.write_text(summary + "\n")
    else:
        sys.stdout.write(summary + "\n")
    return int(found["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
