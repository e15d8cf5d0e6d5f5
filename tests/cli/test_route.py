"""`quicksilver route` as a command: refusals, a running router, its status, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from quicksilver.cli import main
from tests.support.live import free_port
from tests.support.live_process import live_process


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "at least one server"),
        (["--to", "gpu-a:8480"], "give http://HOST:PORT"),
        (["--to", "http://a:1", "--to", "http://a:1"], "twice"),
        (["--show", "--admin-port", "1"], "no router answers"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["route", *words])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_router_runs_shows_its_servers_and_drains(tmp_path: Path) -> None:
    port, admin_port = free_port(), free_port()
    program = [sys.executable, "-c", "from quicksilver.cli import main; main()", "route"]
    options = ["--port", str(port), "--admin-port", str(admin_port)]
    with live_process(tmp_path) as server:
        router = subprocess.Popen([*program, "--to", server.url, *options], stderr=subprocess.PIPE, text=True)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(f"{url}/ready", router)
            body = {"model": "nano", "messages": [{"role": "user", "content": "capital"}]}
            assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).status_code == 200
            shown = subprocess.run(
                [*program, "--show", *options], capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
            )
            assert f"127.0.0.1:{server.port}" in shown.stdout
        finally:
            router.send_signal(signal.SIGTERM)
            _, log = router.communicate(timeout=30)
    assert router.returncode == 0, log
    assert "draining" in log


def wait_until_ready(url: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError("the router is not ready")
