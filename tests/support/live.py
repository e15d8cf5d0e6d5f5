"""A real server for contract tests: the `quicksilver serve` command with real weights, on a free loopback port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.weights import MODEL


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(log: Path, *flags: str, model: str = MODEL) -> Iterator[str]:
    """Yield the base URL of a running server. SIGTERM at the end must drain it and exit cleanly."""
    with serving_process(log, *flags, model=model) as (url, _):
        yield url


@contextmanager
def serving_process(log: Path, *flags: str, model: str = MODEL) -> Iterator[tuple[str, int]]:
    """As `serving`; also yields the process id."""
    port = free_port()
    command = [sys.executable, "-c", "from quicksilver.cli import main; main()", "serve", "--model", model]
    command += ["--port", str(port), "--admin-port", str(free_port()), *flags]
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            _wait_ready(f"http://127.0.0.1:{port}/ready", process, log)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            code = process.wait(timeout=60)
    assert code == 0, log.read_text()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"not ready: {log.read_text()}")
