"""A full disk under the log, or under the feedback file: requests are still answered."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import httpx
import pytest

from tests.server.conftest import Served
from tests.server.paid_server import free_port

FULL = Path("/dev/full")


@pytest.mark.contract
@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_server_whose_log_cannot_be_written_answers(tmp_path: Path) -> None:
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "tests.server.paid_server", str(tmp_path), f"sqlite:///{tmp_path}/books.db"]
    with FULL.open("w") as full, Popen([*command, str(port), str(admin_port)], stderr=full, stdin=PIPE) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=20)) as client:
                assert wait_for(client) == 200
                for _ in range(20):
                    assert client.post("/v1/chat/completions", json={}).status_code == 401
                    assert client.get("/health").status_code == 200
            assert process.poll() is None
        finally:
            process.terminate()
        assert process.wait(30) == 0


def wait_for(client: httpx.Client) -> int:
    while True:
        try:
            return client.get("/ready", timeout=30).status_code
        except httpx.ConnectError:
            continue


async def test_a_report_that_the_disk_does_not_take_is_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("quicksilver.server.endpoints.feedback.store.os.write", full)
    reply = await served.post("/feedback", {"request_id": "r", "user_action": "accept"})
    assert (reply.status_code, reply.json()["stored"]) == (200, False)
