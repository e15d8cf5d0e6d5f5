"""Servers as processes, for `peer_vllm.py`: start, readiness, memory on the GPU, stop."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOP_S = 30.0


@dataclass(frozen=True)
class Command:
    """How a server is started. `{port}` and `{admin_port}` are replaced in `words`; `ready` is the path that answers
    200 when the server takes requests."""

    name: str
    words: str
    ready: str
    env: dict[str, str]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def running(command: Command, log: Path, limit_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
    """The port of a started server, and facts of its start. Every process of its group is ended afterwards."""
    port, idle = free_port(), gpu_memory_mib()
    words = shlex.split(command.words.format(port=port, admin_port=free_port()))
    begin = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            words, env={**os.environ, **command.env}, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        start_s = wait_until_ready(process, f"{url}{command.ready}", log, begin, limit_s)
        wait_for_models(f"{url}/v1/models", begin + limit_s)
        yield port, {"start_s": start_s, "loaded_s": elapsed(begin), "gpu_memory_mib": gpu_memory_mib()}
    finally:
        stop(process)
        wait_for_memory(idle)


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, begin: float, limit_s: float) -> float:
    """Seconds from the start of the process until it takes requests."""
    while time.monotonic() < begin + limit_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                if reply.status == 200:
                    return elapsed(begin)
        except OSError:
            pass
        time.sleep(0.2)
    why = f"did not start in {limit_s:.0f} s" if process.poll() is None else f"ended with {process.returncode}"
    raise SystemExit(f"the server {why}:\n{log.read_text(errors='replace')[-3000:]}")


def wait_for_models(url: str, deadline: float) -> None:
    """Until no model of the list is still being loaded. The first one takes requests before the others are there, and
    loading uses the same GPU."""
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url, timeout=10) as reply:
            states = {(model.get("quicksilver") or {}).get("state") for model in json.load(reply)["data"]}
        if "loading" not in states:
            return
        time.sleep(0.2)


def elapsed(begin: float) -> float:
    return round(time.monotonic() - begin, 1)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, then end what is left of its group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)


def gpu_memory_mib() -> int | None:
    """Memory in use on the first GPU; None without nvidia-smi."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return int(found.split()[0])


def wait_for_memory(idle: int | None, limit_s: float = 20.0) -> None:
    """Until the GPU has about as much memory in use as before the server started."""
    deadline = time.monotonic() + limit_s
    while idle is not None and time.monotonic() < deadline and (gpu_memory_mib() or 0) > idle + 1024:
        time.sleep(0.5)
