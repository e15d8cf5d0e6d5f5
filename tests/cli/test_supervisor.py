"""Several API processes on one port with one worker and one ledger: kill -9 of one, drain, metrics, limits."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import pytest
from sqlalchemy import select

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.maintenance import audit
from quicksilver.accounts.records import KeyDraft, Limits
from quicksilver.accounts.schema import ledger
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.server.config import Timeouts
from tests.cli.supervised_server import NUM_PROCESSES
from tests.server.conftest import chat
from tests.server.paid_server import free_port

CHAT = "/v1/chat/completions"
NUM_STREAMS = 24
NUM_TOKENS = 40


@dataclass
class Supervised:
    process: subprocess.Popen[str]
    url: str
    admin_url: str
    pids: list[int]
    admin: AdminService
    log: Path

    def key(self, limits: Limits | None = None) -> tuple[str, dict[str, str]]:
        org = self.admin.organizations.create_org(OPERATOR, "acme")
        project = self.admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
        draft = KeyDraft("key", project.id) if limits is None else KeyDraft("key", project.id, limits=limits)
        key = self.admin.keys.create_key(OPERATOR, draft)
        return key.id, {"authorization": f"Bearer {key.secret}"}

    def in_flight(self, key_id: str) -> int:
        return self.admin.organizations.get_account(OPERATOR, key_id).in_flight

    def rows(self, key_id: str) -> dict[str, tuple[str, int]]:
        with self.admin.store.read() as connection:
            query = select(ledger.c.request_id, ledger.c.state, ledger.c.output_tokens).where(ledger.c.key_id == key_id)
            return {row[0]: (row[1], row[2]) for row in connection.execute(query)}

    def figure(self, pattern: str, bearer: dict[str, str]) -> float:
        text = httpx.get(f"{self.admin_url}/metrics", headers=bearer).text
        found = re.search(rf"^{pattern} (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0

    def children(self) -> set[int]:
        """The processes whose parent is the supervisor, without the engine worker."""
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)], capture_output=True, text=True
        )
        return {int(line.split()[0]) for line in listed.stdout.splitlines() if "supervised_server" in line}


@contextmanager
def running(tmp_path: Path) -> Iterator[Supervised]:
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "tests.cli.supervised_server", str(tmp_path), str(port), str(admin_port)]
    log = tmp_path / "log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == NUM_PROCESSES, log.read_text()
    admin = open_admin(f"sqlite:///{tmp_path}/books.db", AccountsConfig(pepper_path=tmp_path / "pepper"))
    yield Supervised(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", pids, admin, log)
    admin.store.close()
    if process.poll() is None:
        process.terminate()
        process.wait(90)
    process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """One server for all tests but the last, since several processes take long to start. The last of them ends it."""
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass
class Reading:
    """What a client received of one stream."""

    reply_id: str = ""
    num_tokens: int = 0
    is_done: bool = False


def read_stream(server: Supervised, bearer: dict[str, str]) -> Reading:
    reading, body = Reading(), chat("slowly", stream=True, max_tokens=NUM_TOKENS)
    try:
        with httpx.stream("POST", server.url + CHAT, json=body, headers=bearer, timeout=60) as reply:
            for line in reply.iter_lines():
                if line == "data: [DONE]":
                    reading.is_done = True
                elif line.startswith("data: "):
                    chunk = orjson.loads(line[6:])
                    reading.reply_id = chunk.get("id", "")
                    reading.num_tokens += bool(chunk.get("choices") and chunk["choices"][0]["delta"].get("content"))
    except httpx.TransportError:
        pass
    return reading


def test_a_limit_holds_over_all_processes(server: Supervised) -> None:
    _, bearer = server.key(Limits(requests=5))
    with ThreadPoolExecutor(12) as pool:
        replies = list(
            pool.map(
                lambda _: httpx.post(server.url + CHAT, json=chat(max_tokens=4), headers=bearer, timeout=60), range(12)
            )
        )
    assert sorted(reply.status_code for reply in replies) == [200] * 5 + [429] * 7


def test_after_kill_9_of_one_process_the_others_continue_and_the_ledger_is_exact(server: Supervised) -> None:
    key_id, bearer = server.key()
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        reading = [pool.submit(read_stream, server, bearer) for _ in range(NUM_STREAMS)]
        until(lambda: server.in_flight(key_id) == NUM_STREAMS)
        os.kill(server.pids[0], signal.SIGKILL)
        results = [each.result() for each in reading]
    finished = [each for each in results if each.is_done]
    assert 0 < len(finished) < NUM_STREAMS, "connections are spread over the processes"
    until(lambda: len(server.children()) == NUM_PROCESSES)
    until(lambda: server.in_flight(key_id) == 0)
    rows = server.rows(key_id)
    assert len(rows) == NUM_STREAMS
    assert all(rows[each.reply_id] == ("settled", NUM_TOKENS) for each in finished)
    for each in results:
        if each.reply_id and not each.is_done:
            assert rows[each.reply_id][1] <= NUM_TOKENS
    assert audit(server.admin.store) == []
    for _ in range(2 * NUM_PROCESSES):
        reply = httpx.post(server.url + CHAT, json=chat(max_tokens=8), headers=bearer, timeout=60)
        assert reply.status_code == 200, reply.text
    assert audit(server.admin.store) == []


def test_processes_drain_together_and_metrics_are_added_up(server: Supervised) -> None:
    key_id, bearer = server.key()
    metrics_key = server.admin.keys.bootstrap()
    assert metrics_key is not None
    operator = {"authorization": f"Bearer {metrics_key.secret}"}
    count = rf'quicksilver_http_requests_total{{route="{CHAT}",status="200"}}'
    before = server.figure(count, operator)
    for _ in range(12):
        assert httpx.post(server.url + CHAT, json=chat(max_tokens=4), headers=bearer, timeout=60).status_code == 200
    assert server.figure(count, operator) == before + 12
    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(read_stream, server, bearer) for _ in range(4)]
        until(lambda: server.in_flight(key_id) == 4)
        assert server.figure("quicksilver_http_requests_open", operator) == 5, "four streams and this scrape"
        server.process.terminate()
        until(lambda: httpx.get(f"{server.url}/ready", timeout=10).status_code == 503)
        refused = [httpx.post(server.url + CHAT, json=chat(), headers=bearer, timeout=10) for _ in range(6)]
        assert {reply.json()["error"]["code"] for reply in refused} == {"draining"}
        assert all(each.result().is_done for each in reading)
    assert server.process.wait(90) == 0, server.log.read_text()
    assert audit(server.admin.store) == []
    assert set(server.rows(key_id).values()) == {("settled", 4), ("settled", NUM_TOKENS)}


def test_after_kill_9_of_the_supervisor_the_port_is_free_for_the_next_server(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.process.kill()
        server.process.wait()
        until(lambda: not any(map(is_running, server.pids)), Timeouts().drain_s / 2)
        with socket.create_server(("127.0.0.1", httpx.URL(server.url).port or 0)) as listening:
            assert listening.fileno() >= 0


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
