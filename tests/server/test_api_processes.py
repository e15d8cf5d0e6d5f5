"""Listening sockets that several processes share, and the supervision of processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quicksilver.errors import Unavailable
from quicksilver.server import processes
from quicksilver.server.processes import ApiProcesses, default_num_processes, listening_sockets

# Ends with status 3 on its second SIGTERM, or when standard input ends.
PROGRAM = """
import os, signal, sys
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1) or len(signals) == 2 and os._exit(3))
print(sys.stdin.readline().strip(), flush=True)
sys.stdin.read()
"""


def test_sockets_listen_on_one_port() -> None:
    sockets = listening_sockets("127.0.0.1", 0, 3)
    try:
        assert len({each.getsockname() for each in sockets}) == 1
        assert sockets[0].getsockname()[1] > 0
    finally:
        for each in sockets:
            each.close()


@pytest.mark.parametrize(
    ("cores", "device", "expected"),
    [(1, "cpu", 1), (4, "cpu", 1), (8, "cpu", 2), (16, "cpu", 4), (128, "cpu", 8), (1, "cuda", 1), (16, "cuda", 8)],
)
def test_the_default_follows_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, device: str, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert default_num_processes(device) == expected


@pytest.mark.parametrize(("has_gpu", "expected"), [(False, 2), (True, 4)])
def test_the_default_follows_a_gpu_that_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_gpu: bool, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(processes, "GPU_DEVICE", tmp_path if has_gpu else tmp_path / "none")
    assert default_num_processes("auto") == expected


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


def make(program: str, ended: list[int]) -> ApiProcesses:
    sockets = listening_sockets("127.0.0.1", 0, 2)
    return ApiProcesses((sys.executable, "-c", program), b"settings", sockets, dict(os.environ), ended.append)


async def test_a_process_that_is_killed_is_replaced_and_all_are_drained_together() -> None:
    ended: list[int] = []
    group = make(PROGRAM, ended)
    starting = asyncio.create_task(group.start())
    await until(lambda: len(group.pids) == 2)
    for pid in group.pids:
        group.mark_serving(pid)
    await starting
    killed, other = group.pids
    os.kill(killed, signal.SIGKILL)
    await until(lambda: killed not in group.pids)
    assert (ended, group.num_restarts) == ([killed], 1)
    assert other in group.pids
    await asyncio.sleep(0.3)
    draining = asyncio.create_task(group.drain())
    group.mark_drained(other)
    await asyncio.sleep(0.1)
    assert not draining.done(), "one process still has open replies"
    for pid in group.pids:
        group.mark_drained(pid)
    await draining
    await group.stop()
    assert len(ended) == 3


async def test_a_process_that_does_not_start_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_PAUSE_S", 0.2)
    group = make("raise SystemExit(1)", [])
    with pytest.raises(Unavailable, match="did not start"):
        await group.start()
    await group.stop()


async def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = make(PROGRAM, [])
    starting = asyncio.create_task(group.start())
    await until(lambda: len(group.pids) == 2)
    for pid in group.pids:
        group.mark_serving(pid)
    await starting
    killed, spawn, num_failed = group.pids[0], group._spawn, 0

    async def fail_twice(slot: int) -> asyncio.subprocess.Process:
        nonlocal num_failed
        if num_failed < 2:
            num_failed += 1
            raise OSError("too many open files")
        return await spawn(slot)

    monkeypatch.setattr(group, "_spawn", fail_twice)
    os.kill(killed, signal.SIGKILL)
    await until(lambda: killed not in group.pids)
    assert num_failed == 2
    assert group.num_restarts == 3
    assert len(group.pids) == 2
    await group.stop()
