"""Paid requests over HTTP under random faults, and an audit of the books against what clients saw.

    python -m benchmarks.http_faults --requests 4000 --kills 40 --pieces 5 --seed 21
    python -m benchmarks.http_faults --url postgresql://user@host/name --requests 20000 --kills 120

Two whole servers (accounts, both listeners, a scripted engine) share one database. They are killed (SIGKILL), drained
(SIGTERM) and locked out of their books while clients stream, leave, replay, and ask for what the engine dies of.
With `--pieces` the run is repeated with the following seeds and a new SQLite file each, and the report has the sums.
Prints a JSON report; exit 1 if a single row of the books is wrong, or a key or prompt stands in a log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import platform
import random
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.paid_clients import CANARY, Progress, Seen, send_all
from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import open_admin
from tests.server.paid_server import free_port, serve

NUM_SERVERS = 2
# Longer than the surviving processes need to close the reservations of a killed one.
PATIENCE_S = 12
PIECE_FIELDS = ("settings", "seconds", "cpu_s", "requests", "machine")


@dataclass
class Scene:
    """Paths and addresses of the run."""

    home: Path
    url: str
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(NUM_SERVERS)])
    secrets: list[str] = field(default_factory=list)
    # Number of finished requests, shared between the processes.
    progress: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 8))

    @property
    def config(self) -> AccountsConfig:
        return AccountsConfig(pepper_path=self.home / "pepper")

    def set_up(self, num_tenants: int) -> None:
        admin = open_admin(self.url, self.config)
        for number in range(num_tenants):
            org = admin.organizations.create_org(OPERATOR, f"org {number}")
            project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
            self.secrets.append(admin.keys.create_key(OPERATOR, KeyDraft("key", project.id)).secret)
        admin.store.close()

    def fork_server(self, port: int) -> int:
        """Fork instead of starting a new interpreter, because a hundred starts would spend most of the time on
        imports."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.dup2(os.open(self.home / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
                asyncio.run(serve(self.home, self.url, port, 0))
                status = 0
            finally:
                os._exit(status)
        return pid

    def fork_clients(self, num_requests: int, seed: int) -> int:
        pid = os.fork()
        if pid == 0:
            seen = asyncio.run(send_all(self.ports, self.secrets, Progress(num_requests, self.progress), seed))
            (self.home / "seen.json").write_text(json.dumps([asdict(one) for one in seen]))
            os._exit(0)
        return pid


class Weather:
    """Injects faults at random points between requests."""

    def __init__(self, scene: Scene, num_requests: int, num_kills: int, seed: int) -> None:
        self._scene = scene
        self._random = random.Random(seed)
        names = ["kill"] * num_kills + ["drain"] * (num_kills // 5)
        names += ["lock"] * (num_kills // 5 if scene.url.startswith("sqlite") else 0)
        self._random.shuffle(names)
        self._plan = [(num_requests * (i + 1) // (len(names) + 1), name) for i, name in enumerate(names)]
        self.faults: Counter[str] = Counter()
        self.exit_codes: Counter[int] = Counter()
        self.pids = {port: scene.fork_server(port) for port in scene.ports}

    def blow_until(self, clients: int) -> None:
        for due, name in self._plan:
            while Progress.read(self._scene.progress) < due:
                time.sleep(0.02)
            port = self._random.choice(self._scene.ports)
            if name == "lock":
                self._lock()
            else:
                self._end(port, signal.SIGKILL if name == "kill" else signal.SIGTERM, name)
        os.waitpid(clients, 0)

    def _end(self, port: int, number: signal.Signals, name: str) -> None:
        if number is signal.SIGTERM:
            _await_listener(port)
        os.kill(self.pids[port], number)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pids[port], 0)[1])
        if number is signal.SIGTERM:
            self.exit_codes[code] += 1
        self.faults[name] += 1
        self.pids[port] = self._scene.fork_server(port)

    def _lock(self) -> None:
        connection = sqlite3.connect(self._scene.url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(self._random.uniform(0.1, 1.0))
            connection.execute("ROLLBACK")
            self.faults["lock"] += 1
        except sqlite3.OperationalError:
            self.faults["lock refused"] += 1
        finally:
            connection.close()

    def calm(self) -> float:
        """Wait until the surviving processes have closed all open reservations, then shut down. Returns the seconds."""
        admin = open_admin(self._scene.url, self._scene.config)
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE_S:
            with admin.store.read() as connection:
                if connection.execute(select(ledger.c.request_id).where(ledger.c.state == "open")).first() is None:
                    break
            time.sleep(0.1)
        swept_s = time.monotonic() - started
        admin.store.close()
        for port, pid in self.pids.items():
            _await_listener(port)
            os.kill(pid, signal.SIGTERM)
            self.exit_codes[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])] += 1
        return swept_s


def _await_listener(port: int) -> None:
    """Wait until a starting server listens, because it cannot handle SIGTERM before."""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.02)


def compare(scene: Scene, seen: list[Seen]) -> dict[str, Any]:
    admin = open_admin(scene.url, scene.config)
    with admin.store.read() as connection:
        rows = {row.request_id: row for row in connection.execute(select(ledger))}
    findings = audit(admin.store)
    admin.store.close()
    wrong = Counter({"lost": 0, "over_charged": 0, "under_charged": 0, "double": 0, "left_open": 0})
    for one in seen:
        wrong.update(faults_of(one, rows.get(one.reply_id) if one.reply_id else None))
    wrong["left_open"] = sum(row.state == "open" for row in rows.values())
    wrong["double"] += replayed_twice(seen)
    return {
        "rows": len(rows),
        "states": dict(Counter(f"{row.state} by {row.closed_by}" for row in rows.values())),
        "wrong": dict(wrong),
        "findings": findings,
    }


def faults_of(one: Seen, row: Any) -> list[str]:
    """Differences between the ledger and what the client received for one request."""
    if one.is_whole:
        if row is None or row.state != "settled":
            return ["lost"]
        booked, told = row.input_tokens + row.output_tokens, one.input_tokens + one.output_tokens
        return [] if booked == told else ["over_charged" if booked > told else "under_charged"]
    if row is None or row.state != "settled":
        return []
    # Cut off: what was on the wire is not known here, only that it was at most the whole answer; `ledger_faults.py`
    # knows it to the token.
    return ["over_charged"] if row.output_tokens > one.most_output else []


def replayed_twice(seen: list[Seen]) -> int:
    """Idempotency keys that returned two different complete answers."""
    answers: dict[str, set[str]] = {}
    for one in seen:
        if one.is_whole and one.idempotency_key:
            answers.setdefault(one.idempotency_key, set()).add(one.reply_id)
    return sum(len(ids) > 1 for ids in answers.values())


def leaks(scene: Scene) -> int:
    """Log lines that contain a prompt or a key."""
    lines = (scene.home / "log").read_text().splitlines()
    return sum(CANARY in line or any(secret in line for secret in scene.secrets) for line in lines)


def storm(args: argparse.Namespace, seed: int, home: Path) -> dict[str, Any]:
    scene = Scene(home, args.url or f"sqlite:///{home}/books.db")
    scene.set_up(num_tenants=4)
    started, cpu_s = time.monotonic(), sum(os.times()[:4])
    weather = Weather(scene, args.requests, args.kills, seed)
    weather.blow_until(scene.fork_clients(args.requests, seed))
    seconds = time.monotonic() - started
    sweep_s = weather.calm()
    seen = [Seen(**one) for one in json.loads((home / "seen.json").read_text())]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "settings": {"requests": args.requests, "kills": args.kills, "seed": seed, "servers": NUM_SERVERS},
        "seconds": round(seconds, 1),
        "cpu_s": round(sum(os.times()[:4]) - cpu_s, 1),
        "requests": len(seen),
        "delivered": sum(one.is_whole for one in seen),
        "replayed": sum(one.is_replay for one in seen),
        "outcomes": dict(Counter(one.outcome for one in seen).most_common()),
        "faults": dict(weather.faults),
        "exit_codes": {str(code): num for code, num in weather.exit_codes.items()},
        "sweep_s": round(sweep_s, 2),
        "log_leaks": leaks(scene),
        **compare(scene, seen),
    }


def join(pieces: list[dict[str, Any]], database: str) -> dict[str, Any]:
    """The sums of all pieces, and the settings and times of each."""
    counts = {name: sum(piece[name] for piece in pieces) for name in ("requests", "delivered", "replayed", "log_leaks")}
    groups = ("outcomes", "faults", "exit_codes", "states", "wrong")
    return {
        "benchmark": "http_faults",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "database": database,
        **counts,
        "rows": sum(piece["rows"] for piece in pieces),
        **{name: add(piece[name] for piece in pieces) for name in groups},
        "findings": [finding for piece in pieces for finding in piece["findings"]],
        "longest_sweep_s": max(piece["sweep_s"] for piece in pieces),
        "pieces": [{name: piece[name] for name in PIECE_FIELDS} for piece in pieces],
    }


def add(groups: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for group in groups:
        total.update(group)
    return dict(total)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="database; default: a new SQLite file")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pieces", type=int, default=1, help="runs of that many requests and kills")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    if args.url and args.pieces > 1:
        parser.error("--pieces needs a new database each, without --url")
    pieces = []
    for seed in range(args.seed, args.seed + args.pieces):
        with tempfile.TemporaryDirectory() as folder:
            pieces.append(storm(args, seed, Path(folder)))
    report = join(pieces, args.url.split(":")[0] if args.url else "sqlite")
    text = json.dumps(report, indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")
    wrong = sum(report["wrong"].values()) + len(report["findings"]) + report["log_leaks"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
