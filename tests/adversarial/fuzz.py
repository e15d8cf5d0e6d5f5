"""Fuzzes a whole server: every operation of both OpenAPI documents, and HTTP framing on raw sockets.

    python -m tests.adversarial.fuzz --cases 100000

The engine is scripted; accounts, grammars, encoders and both listeners are real. Prints a JSON summary and exits with
1 if a reply had a 5xx other than 503, an error without the documented envelope, or took longer than 10 s, if it could
run as a script in a browser or had a header from the request's text, or if the server ended. Operations are read from
the documents, so new routes are covered without a change here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import AdminService, open_admin
from tests.adversarial.fuzz_cases import Case, CaseMaker, Operation, framing_case, operations_of
from tests.adversarial.fuzz_server import accounts_config, database_url
from tests.server.paid_server import free_port

LIMIT_S = 10.0
NUM_CLIENTS = 6
# Share of the cases that are framing, not requests of a document.
FRAMING_SHARE = 0.25
# Replies in a row that reject the key, after which new ones are made: a case may have revoked them.
MAX_REJECTED = 3
MAX_IDS, MAX_EXAMPLES = 200, 20
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
IDS = re.compile(rb'"id": ?"([\w-]{4,80})"')


@dataclass(frozen=True, slots=True)
class Listener:
    """One of the two applications: its address, its document and a caller's headers."""

    port: int
    document: dict[str, Any]
    headers: dict[str, str]


@dataclass
class Summary:
    by_route: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    undeclared: list[str] = field(default_factory=list)
    without_envelope: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def add(self, case: Case, reply: bytes, seconds: float, *, is_hung: bool) -> None:
        self.by_route[case.route] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        example = f"{case.route}: {case.pieces[0][:4000]!r}"
        statuses = [int(found) for found in STATUS.findall(reply) if found != b"100"]
        self.statuses.update(map(str, statuses) if statuses else ["closed"])
        if is_hung:
            self.hangs.append(example)
        if any(status >= 500 and status != 503 for status in statuses):
            self.undeclared.append(f"{statuses}: {example}")
        if case.route != "HTTP framing" and statuses and statuses[0] >= 400 and not has_envelope(reply):
            self.without_envelope.append(f"{statuses}: {example}")
        if case.route != "HTTP framing" and statuses and not is_safe(reply):
            self.unsafe.append(f"{statuses}: {example}")

    def report(self, seed: int, seconds: float) -> dict[str, Any]:
        return {
            "seed": seed,
            "cases": self.by_route.total(),
            "cases_by_route": dict(sorted(self.by_route.items())),
            "statuses": dict(self.statuses.most_common()),
            "undeclared_5xx": len(self.undeclared),
            "hangs_over_10_s": len(self.hangs),
            "errors_without_envelope": len(self.without_envelope),
            "unsafe_replies": len(self.unsafe),
            "examples": [*self.undeclared, *self.hangs, *self.without_envelope, *self.unsafe][:MAX_EXAMPLES],
            "slowest_s": round(self.slowest_s, 2),
            "seconds": round(seconds),
            "is_sound": not (self.undeclared or self.hangs or self.without_envelope or self.unsafe),
        }


def has_envelope(reply: bytes) -> bool:
    """Whether the body is the JSON object of an error; replies to HEAD have no body."""
    _, _, body = reply.partition(b"\r\n\r\n")
    try:
        return not body or "error" in json.loads(body)
    except (ValueError, TypeError):
        return False


def is_safe(reply: bytes) -> bool:
    """Whether a browser treats the body as data, and no header was injected through the text of a request."""
    head = reply.partition(b"\r\n\r\n")[0].lower()
    lines = dict(line.partition(b": ")[::2] for line in head.split(b"\r\n")[1:])
    is_data = not lines.get(b"content-type", b"").startswith((b"text/html", b"image/svg", b"application/xhtml"))
    return is_data and lines.get(b"x-content-type-options") == b"nosniff" and b"x-injected" not in lines


async def send(port: int, case: Case) -> tuple[bytes, float, bool]:
    """The bytes of the reply, the seconds until the connection ended, and whether that took too long."""
    started, received = time.perf_counter(), bytearray()
    is_hung = False
    try:
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for piece in case.pieces:
                    writer.write(piece)
                    await writer.drain()
                if case.route == "HTTP framing":
                    writer.write_eof()
                while piece := await reader.read(65536):
                    received += piece
            finally:
                writer.transport.abort()
    except TimeoutError:
        is_hung = True
    except OSError:
        pass  # closed by the server, which is an answer to broken framing
    return bytes(received), time.perf_counter() - started, is_hung


class Fuzzer:
    """One client: its own random numbers and, with time, new keys.

    Half of its requests visit the operations in order. Client `index` begins at its share of the list, so that a short
    run visits all of them equally often.
    """

    def __init__(
        self, seed: int, index: int, home: Path, ports: tuple[int, int], summary: Summary, ids: list[str]
    ) -> None:
        self._rng = random.Random(f"{seed}/{index}")
        self._index, self._num_requests = index, 0
        self._home, self._ports, self._summary, self._ids = home, ports, summary, ids

    async def run(self, num_cases: int) -> None:
        rejected = MAX_REJECTED
        for _ in range(num_cases):
            if rejected >= MAX_REJECTED:
                listeners, rejected = await asyncio.to_thread(open_listeners, self._home, self._ports), 0
            is_rejected = await self._one(listeners)
            rejected = rejected + 1 if is_rejected else 0

    async def _one(self, listeners: list[Listener]) -> bool:
        """Sends one case. Whether the key was rejected."""
        listener, case = self._make(listeners)
        reply, seconds, is_hung = await send(listener.port, case)
        if is_hung:
            # Not a hang if the machine stalled: then the same case ends in time now.
            _, _, is_hung = await send(listener.port, case)
        self._summary.add(case, reply, seconds, is_hung=is_hung)
        for found in IDS.findall(reply[:20_000]):
            self._ids.append(found.decode())
        del self._ids[:-MAX_IDS]
        return reply.startswith(b"HTTP/1.1 401")

    def _make(self, listeners: list[Listener]) -> tuple[Listener, Case]:
        rng = self._rng
        if rng.random() < FRAMING_SHARE:
            listener = rng.choice(listeners)
            paths = [path for path in listener.document["paths"] if "{" not in path]
            return listener, framing_case(rng, paths, listener.headers)
        operations = [(one, operation) for one in listeners for operation in operations_of(one.document)]
        listener, operation = self._choose(operations)
        return listener, CaseMaker(listener.document, rng, self._ids).request(operation, listener.headers)

    def _choose(self, operations: list[tuple[Listener, Operation]]) -> tuple[Listener, Operation]:
        turn, is_random = divmod(self._num_requests, 2)
        self._num_requests += 1
        if is_random:
            return self._rng.choice([pair for pair in operations if pair[1].body is not None])
        return operations[(turn + self._index * len(operations) // NUM_CLIENTS) % len(operations)]


def open_listeners(home: Path, ports: tuple[int, int]) -> list[Listener]:
    """Both listeners, each with a new key."""
    admin = open_admin(database_url(home), accounts_config(home))
    try:
        keys = (tenant_key(admin), admin_key(admin))
    finally:
        admin.store.close()
    return [Listener(port, read_document(port, key), key) for port, key in zip(ports, keys, strict=True)]


def read_document(port: int, key: dict[str, str]) -> dict[str, Any]:
    reply = httpx.get(f"http://127.0.0.1:{port}/openapi.json", headers=key, timeout=60).raise_for_status()
    document: dict[str, Any] = reply.json()
    return document


def tenant_key(admin: AdminService) -> dict[str, str]:
    org = admin.organizations.create_org(OPERATOR, "fuzz")
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    scopes = frozenset(Scope) - {Scope.ADMIN}
    return {"authorization": f"Bearer {admin.keys.create_key(OPERATOR, KeyDraft('fuzz', project.id, scopes)).secret}"}


def admin_key(admin: AdminService) -> dict[str, str]:
    project = admin.organizations.list_accounts(OPERATOR, "project")[0]
    draft = KeyDraft("fuzz", project.id, frozenset(Scope))
    return {"authorization": f"Bearer {admin.keys.create_key(OPERATOR, draft).secret}"}


@contextmanager
def fuzz_server(home: Path) -> Iterator[tuple[int, int]]:
    """The ports of a running server. It must end cleanly when it is told to stop."""
    ports = (free_port(), free_port())
    command = [sys.executable, "-m", "tests.adversarial.fuzz_server", str(home), *map(str, ports)]
    with (home / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_ready(f"http://127.0.0.1:{ports[0]}/ready", process)
            yield ports
            assert process.poll() is None, (home / "log").read_text()[-4000:]
        finally:
            process.terminate()
            process.wait(60)


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def fuzz(num_cases: int, seed: int) -> dict[str, Any]:
    summary, ids = Summary(), list[str]()
    started = time.monotonic()

    async def run_all(home: Path, ports: tuple[int, int]) -> None:
        share = -(-num_cases // NUM_CLIENTS)
        fuzzers = [Fuzzer(seed, i, home, ports, summary, ids) for i in range(NUM_CLIENTS)]
        await asyncio.gather(*(fuzzer.run(share) for fuzzer in fuzzers))

    with tempfile.TemporaryDirectory() as folder, fuzz_server(Path(folder)) as ports:
        asyncio.run(run_all(Path(folder), ports))
    return summary.report(seed, time.monotonic() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="file for the summary; standard output without it")
    options = parser.parse_args()
    report = fuzz(options.cases, options.seed)
    text = json.dumps(report, indent=2)
    if options.report:
        options.report.write_text(text + "\n")
    else:
        sys.stdout.write(text + "\n")
    return 0 if report["is_sound"] else 1


if __name__ == "__main__":
    sys.exit(main())
