"""Paid requests under random faults, and an audit of the books against what clients saw.

    python benchmarks/ledger_faults.py --requests 100000 --kills 500
    python benchmarks/ledger_faults.py --url postgresql://user@host/name --pepper FILE --requests 20000

Several server processes are killed (SIGKILL), frozen until others take them for dead, locked out of the database,
starved of disk (SQLite) or cut off from it (PostgreSQL), while clients leave and replay. Prints a JSON report; exit 1
if a single row of the books is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import paid_traffic
import psycopg
from sqlalchemy import select

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import KeyDraft, Limits, Price
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import Accounts, open_admin
from quicksilver.core import Usage

PRICE = Price(10, 1, 100)


@dataclass
class Seen:
    """What the client received of one request."""

    key: str = ""
    is_reserved: bool = False
    on_wire: int = 0
    acknowledged: int = 0
    finished: Usage | None = None
    delivered: Usage | None = None


@dataclass
class Journal:
    """Everything read from the pipe."""

    requests: dict[str, Seen] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    replays: dict[str, set[str]] = field(default_factory=dict)
    # Requests that were admitted or answered from a stored reply.
    num_paid: int = 0
    # Names of the processes that have opened the database.
    started: set[str] = field(default_factory=set)
    rest: bytes = b""

    def read(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._note(*line.decode().split(" "))

    def _note(self, what: str, subject: str, *more: str) -> None:
        self.num_paid += what in "RP"
        if what == "S":
            self.started.add(subject)
        elif what == "N":
            self.refused[more[0]] += 1
        elif what == "P":
            self.replays.setdefault(subject, set()).add(more[0])
        else:
            _note_request(self.requests.setdefault(subject, Seen()), what, more)


def _note_request(seen: Seen, what: str, more: tuple[str, ...]) -> None:
    match what:
        case "A":
            seen.key = more[0] if more else ""
        case "R":
            seen.is_reserved = True
        case "W":
            seen.on_wire = int(more[0])
        case "C":
            seen.acknowledged = int(more[0])
        case "F":
            seen.finished = Usage(*map(int, more))
        case "D":
            seen.delivered = Usage(*map(int, more))


class Fleet:
    """Server processes that share a database, and the pipe to which they report what clients received."""

    def __init__(self, url: str, config: AccountsConfig, secrets: tuple[str, ...], seed: int, num_keys: int) -> None:
        self._url, self._config, self._secrets, self._num_keys = url, config, secrets, num_keys
        self._random = random.Random(seed)
        self._num_started = 0
        self.pids: list[int] = []
        self._names: dict[int, str] = {}
        self.out, self._into = os.pipe()
        os.set_blocking(self.out, False)

    def start(self) -> None:
        self._num_started += 1
        name = f"p{self._num_started}"
        plan = paid_traffic.Plan(
            self._url, self._config, self._secrets, name, self._random.random(), self._into, self._num_keys,
        )  # fmt: skip
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                paid_traffic.run(plan)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self.pids.append(pid)
        self._names[pid] = name

    def has_started(self, started: set[str]) -> bool:
        """Whether every process is among those that have opened the database."""
        return all(self._names[pid] in started for pid in self.pids)

    def kill_one(self) -> None:
        pid = self.pids.pop(self._random.randrange(len(self.pids)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.start()

    def restart_fallen(self) -> int:
        """Restart exited processes, as a supervisor would. A server that finds the database locked at start exits."""
        fallen = [pid for pid in self.pids if os.waitpid(pid, os.WNOHANG)[0]]
        for pid in fallen:
            self.pids.remove(pid)
            self.start()
        return len(fallen)

    def drain(self, read: Callable[[], None]) -> list[int]:
        """Tell all processes to finish and return their exit codes."""
        codes = []
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
        for pid in self.pids:
            done, status = os.waitpid(pid, os.WNOHANG)
            while not done:
                read()
                time.sleep(0.005)
                done, status = os.waitpid(pid, os.WNOHANG)
            codes.append(os.waitstatus_to_exitcode(status))
        return codes


class Storm:
    """Sends the requests and injects the faults."""

    def __init__(self, url: str, fleet: Fleet, seed: int) -> None:
        self._url, self._fleet, self._random = url, fleet, random.Random(seed + 1)
        self.journal = Journal()
        self.faults: Counter[str] = Counter()
        self.num_fallen = 0

    def run(self, num_requests: int, num_kills: int, num_workers: int) -> list[int]:
        for _ in range(num_workers):
            self._fleet.start()
        num_faults = max(9, num_kills // 8)
        while self.journal.num_paid < num_requests or self.faults.total() < num_kills + num_faults:
            self._read()
            self._restart_fallen()
            progress = min(1.0, self.journal.num_paid / num_requests)
            if self.faults["kill"] < num_kills * progress:
                self._fleet.kill_one()
                self.faults["kill"] += 1
            elif self.faults.total() - self.faults["kill"] < num_faults * progress:
                self._fault()
        # A fault can end a process that is still opening the database, and the drain expects every exit code to be 0.
        while self._restart_fallen() or not self._fleet.has_started(self.journal.started):
            self._read()
        return self._fleet.drain(self._read)

    def _restart_fallen(self) -> int:
        num_fallen = self._fleet.restart_fallen()
        self.num_fallen += num_fallen
        return num_fallen

    def _read(self) -> None:
        try:
            self.journal.read(os.read(self._fleet.out, 1 << 20))
        except BlockingIOError:
            time.sleep(0.002)

    def _hold(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._read()

    def _fault(self) -> None:
        is_sqlite = self._url.startswith("sqlite")
        choices = [self._lock_sqlite, self._starve] if is_sqlite else [self._lock_postgres, self._cut_off]
        fault = [*choices, self._freeze][(self.faults.total() - self.faults["kill"]) % 3]
        fault(self._random.choice([0.1, 0.3, 0.9]))
        self.faults[fault.__name__.strip("_")] += 1

    def _lock_sqlite(self, seconds: float) -> None:
        other = sqlite3.connect(self._url.removeprefix("sqlite:///"), isolation_level=None, timeout=20)
        other.execute("BEGIN EXCLUSIVE")
        self._hold(seconds)
        other.execute("ROLLBACK")
        other.close()

    def _starve(self, seconds: float) -> None:
        """Prevent one process from writing or growing files, as on a full disk."""
        pid = self._random.choice(self._fleet.pids)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        self._hold(seconds)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def _freeze(self, seconds: float) -> None:
        """Stop one process until the others consider it dead. Its remaining work must not be charged twice."""
        pid = self._random.choice(self._fleet.pids)
        os.kill(pid, signal.SIGSTOP)
        self._hold(2.5 + seconds)
        os.kill(pid, signal.SIGCONT)
        self._hold(0.5)  # no kill before it has gone on

    def _lock_postgres(self, seconds: float) -> None:
        with psycopg.connect(self._url) as connection:
            connection.execute("LOCK TABLE accounts, ledger IN ACCESS EXCLUSIVE MODE")
            self._hold(seconds)

    def _cut_off(self, seconds: float) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )


def prepare(url: str, config: AccountsConfig) -> tuple[str, ...]:
    """Create one organisation with enough credit and one that will run out."""
    admin = open_admin(url, config)
    secrets = []
    for name, credits in (("rich", 10**9), ("poor", 1)):
        org = admin.organizations.create_org(OPERATOR, name, credits)
        project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
        secrets.append(admin.keys.create_key(OPERATOR, KeyDraft(name, project.id)).secret)
    admin.store.close()
    return (secrets[0],) * 11 + (secrets[1],)


async def sweep(url: str, config: AccountsConfig) -> float:
    """Start one more process and wait until it has closed all orphaned reservations. Returns the seconds."""
    begun = time.monotonic()
    accounts = await Accounts.open(url, config)
    query = select(ledger.c.seq).where(ledger.c.state == "open").limit(1)

    def has_open() -> bool:
        admin = open_admin(url, config)
        with admin.store.read() as connection:
            found = connection.execute(query).one_or_none()
        admin.store.close()
        return found is not None

    while has_open():
        await asyncio.sleep(config.heartbeat_s)
    seconds = time.monotonic() - begun
    await accounts.close()
    return seconds


def compare(url: str, config: AccountsConfig, journal: Journal) -> dict[str, object]:
    """Compare every ledger row with what clients received."""
    admin = open_admin(url, config)
    with admin.store.read() as connection:
        rows = {row.request_id: row for row in connection.execute(select(ledger))}
    wrong: Counter[str] = Counter(dict.fromkeys(("lost", "double", "over_charged", "under_charged", "left_open"), 0))
    for request_id, seen in journal.requests.items():
        wrong.update(_judge(seen, rows.get(request_id)))
    wrong["double"] += sum(count > 1 for count in _charges_by_key(journal, rows).values())
    wrong["double"] += sum(len(bodies) > 1 for bodies in journal.replays.values())
    findings = audit(admin.store)
    orgs = admin.organizations.list_accounts(OPERATOR, "org")
    admin.store.close()
    return {
        "rows": len(rows),
        "states": Counter(f"{row.state} by {row.closed_by}" for row in rows.values()),
        "unseen_rows": len(rows.keys() - journal.requests.keys()),
        "wrong": dict(wrong),
        "findings": findings,
        "negative_balances": sum(org.balance is not None and org.balance < 0 for org in orgs),
    }


def _judge(seen: Seen, row: object) -> list[str]:
    if row is None:
        return ["lost"] * (seen.is_reserved or seen.delivered is not None)
    said = ["left_open"] * (row.state == "open")
    if seen.delivered is not None and (row.state != "settled" or row.cost != PRICE.cost(seen.delivered)):
        said.append("lost")
    if row.state == "settled" and row.cost > _most(seen):
        said.append("over_charged")
    if row.state != "open" and row.output_tokens < seen.acknowledged:
        said.append("under_charged")
    return said


def _most(seen: Seen) -> int:
    """Upper bound of a charge: the finished answer, or the prompt and the tokens sent."""
    streamed = PRICE.cost(Usage(paid_traffic.PROMPT_LEN, 0, seen.on_wire)) if seen.on_wire else 0
    return max(streamed, PRICE.cost(seen.finished) if seen.finished else 0)


def _charges_by_key(journal: Journal, rows: dict[str, object]) -> Counter[str]:
    """Number of charges per idempotency key."""
    keyed = [(seen.key, rows[request_id]) for request_id, seen in journal.requests.items() if request_id in rows]
    return Counter(key for key, row in keyed if key and row.state == "settled")


def storm(url: str, config: AccountsConfig, args: argparse.Namespace) -> dict[str, object]:
    begun = time.monotonic()
    fleet = Fleet(url, config, prepare(url, config), args.seed, max(10, args.requests // 20))
    weather = Storm(url, fleet, args.seed)
    exit_codes = weather.run(args.requests, args.kills, args.workers)
    swept_s = asyncio.run(sweep(url, config))
    weather._read()
    seconds = time.monotonic() - begun
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "database": url.split(":")[0],
        "settings": {name: getattr(args, name) for name in ("requests", "kills", "workers", "seed")},
        "seconds": round(seconds, 1),
        "requests": weather.journal.num_paid,
        "requests_per_s": round(weather.journal.num_paid / seconds),
        "delivered": sum(seen.delivered is not None for seen in weather.journal.requests.values()),
        "replayed": sum(map(len, weather.journal.replays.values())),
        "refused": weather.journal.refused,
        "faults": weather.faults,
        "gave_up_at_start": weather.num_fallen,
        "drain_exit_codes": exit_codes,
        "sweep_s": round(swept_s, 2),
        "audit": compare(url, config, weather.journal),
    }


def is_clean(report: dict[str, object]) -> bool:
    found = report["audit"]
    return not (any(found["wrong"].values()) or found["findings"] or found["negative_balances"] or found["unseen_rows"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="database; default: a new SQLite file")
    parser.add_argument("--pepper", type=Path, help="pepper file, for PostgreSQL")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = AccountsConfig(
            pepper_path=args.pepper or Path(folder) / "pepper",
            default_price=PRICE,
            key_limits=Limits(),
            lock_wait_s=0.5,
            heartbeat_s=0.25,
        )
        report = storm(args.url or f"sqlite:///{folder}/books.db", config, args)
    text = json.dumps(report, indent=1, default=str)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")
    return 0 if is_clean(report) else 1


if __name__ == "__main__":
    sys.exit(main())
