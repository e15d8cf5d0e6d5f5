from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from quicksilver.worker.process import WorkerProcess, available_bytes

# Opens its socket and ends with its standard input.
LISTENS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[sys.argv.index("--socket") + 1])
    listener.listen()
    sys.stdin.read()
"""
SLEEPS = "import time; time.sleep(60)"


async def start(tmp_path: Path, program: str) -> WorkerProcess:
    return await WorkerProcess.start([sys.executable, "-c", program], tmp_path / "a.sock")


async def test_a_worker_is_connected_and_stopped(tmp_path: Path) -> None:
    worker = await start(tmp_path, LISTENS)
    streams = await worker.connect(start_s=30, stopped_s=30)
    assert streams is not None
    assert worker.exit_code is None
    await worker.stop()
    assert worker.exit_code == 0
    streams[1].close()


async def test_a_worker_that_ends_gives_no_connection(tmp_path: Path) -> None:
    worker = await start(tmp_path, "raise SystemExit(3)")
    assert await worker.connect(start_s=30, stopped_s=30) is None
    assert worker.exit_code == 3


async def test_a_worker_that_starts_too_slowly_is_killed(tmp_path: Path) -> None:
    worker = await start(tmp_path, SLEEPS)
    assert await worker.connect(start_s=0.1, stopped_s=30) is None
    await asyncio.wait_for(worker.stop(), 20)
    assert worker.exit_code == -signal.SIGKILL


async def test_a_worker_that_is_stopped_while_it_starts_is_killed(tmp_path: Path) -> None:
    worker = await start(tmp_path, SLEEPS)
    os.kill(worker.pid, signal.SIGSTOP)
    assert await worker.connect(start_s=30, stopped_s=0.1) is None
    await asyncio.wait_for(worker.stop(), 20)
    assert worker.exit_code == -signal.SIGKILL


async def test_a_stopped_worker_counts_as_lost_and_a_running_one_does_not(tmp_path: Path) -> None:
    worker = await start(tmp_path, SLEEPS)
    waiting = asyncio.create_task(worker.wait_until_lost(0.05))
    await asyncio.wait({waiting}, timeout=0.3)
    assert (waiting.done(), worker.is_stopped) == (False, False)
    os.kill(worker.pid, signal.SIGSTOP)
    await asyncio.wait_for(waiting, 60)
    assert worker.exit_code == -signal.SIGKILL


def test_available_memory_is_known() -> None:
    assert available_bytes() > 1 << 20
