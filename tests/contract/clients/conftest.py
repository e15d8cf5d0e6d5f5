"""A live server with real weights. Nothing here imports the package, because the clients run in their own
environment.

`run.py` beside this file starts the server and sets its addresses.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

collect_ignore_glob = [] if "QUICKSILVER_URL" in os.environ else ["test_*.py"]
# They have an environment of their own, in which the other clients are not installed.
if "QUICKSILVER_FRAMEWORKS" not in os.environ:
    collect_ignore_glob.append("frameworks/*")


@dataclass(frozen=True)
class Server:
    url: str
    admin_url: str

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def figure(self, name: str) -> float:
        """A number of the engine's own, as Prometheus would read it."""
        found = re.search(rf"^quicksilver_{name}{{[^}}]*}} (\S+)$", httpx.get(f"{self.admin_url}/metrics").text, re.M)
        assert found is not None, name
        return float(found[1])

    @contextmanager
    def expecting_an_abort(self) -> Iterator[None]:
        """The block must end one request in the engine before it is finished, and free its slot."""
        before = self.figure("aborts_total")
        yield
        deadline = time.monotonic() + 30
        while self.figure("aborts_total") == before or self.figure("num_requests_running"):
            assert time.monotonic() < deadline, "the reader left, and the engine went on"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def server() -> Server:
    return Server(os.environ["QUICKSILVER_URL"], os.environ["QUICKSILVER_ADMIN_URL"])


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose scripted engine calls a tool that it is offered: a small model may answer in words instead."""
    root = Path(__file__).parents[3]
    command = [os.environ["QUICKSILVER_PYTHON"], "-m", "tests.contract.live", str(tmp_path_factory.mktemp("home"))]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        command, cwd=root, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        yield Server(url, url)
        process.stdin.close()
