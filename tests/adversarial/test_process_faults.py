"""Which processes belong to a server, and when one of them counts as replaced."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial import process_faults
from tests.adversarial.process_faults import Process, inject, process_tree

# Starts a child again whenever it ends or is stopped, as a pool does, and waits for the end of its input.
PARENT = """
import os, signal, subprocess, sys, threading
def start():
    return subprocess.Popen([sys.executable, "-m", "sleeper"])
child = start()
print(child.pid, flush=True)
def watch():
    global child
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            child.kill()
            os.waitpid(child.pid, 0)
        child = start()
threading.Thread(target=watch, daemon=True).start()
sys.stdin.read()
child.kill()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(process_faults, "KINDS", {"sleeper": "worker"})
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


def workers(pid: int) -> list[Process]:
    return [process for process in process_tree(pid) if process.kind == "worker"]


async def wait_for_worker(pid: int) -> Process:
    async with asyncio.timeout(60):
        while not (found := workers(pid)):
            await asyncio.sleep(0.05)
    return found[0]


async def test_the_tree_has_the_processes_below_one(parent: int) -> None:
    worker = await wait_for_worker(parent)
    tree = process_tree(parent)
    assert {process.pid for process in tree} == {parent, worker.pid}
    assert worker.is_running
    assert all(process.rss_mb > 0 for process in tree if process.is_running)
    assert os.getpid() not in {process.pid for process in tree}


@pytest.mark.parametrize("chosen", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_counts_as_replaced_when_another_one_runs(
    parent: int, chosen: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await wait_for_worker(parent)
    monkeypatch.setattr(process_faults, "SIGNALS", (chosen,))
    fault = await inject(random.Random(1), parent, 60)
    assert fault is not None
    assert (fault.kind, fault.signal) == ("worker", chosen.name)
    assert fault.seconds is not None
    after = await wait_for_worker(parent)
    assert after.pid != before.pid


async def test_a_process_that_is_not_replaced_in_time_is_reported(parent: int) -> None:
    await wait_for_worker(parent)
    fault = await inject(random.Random(1), parent, 0.0)
    assert fault is not None
    assert fault.seconds is None


async def test_a_server_without_such_processes_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_faults, "KINDS", {})
    assert await inject(random.Random(1), os.getpid(), 1.0) is None
