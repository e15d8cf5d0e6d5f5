"""Start and end of a server: addresses that need keys, draining, exit."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.request_record import OpenRequests
from quicksilver.server.run import check_address, check_ports
from quicksilver.worker.collector import COLLECT_AFTER
from tests.server.asgi import Call
from tests.server.conftest import Served, chat

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.8.8.8"])
def test_loopback_needs_no_keys(host: str) -> None:
    config = replace(ServerConfig(), host=host)
    assert check_address(config, has_accounts=False) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", ""])
def test_beyond_loopback_needs_keys_or_an_explicit_flag(host: str) -> None:
    config = replace(ServerConfig(), host=host)
    with pytest.raises(InvalidRequest, match="without keys"):
        check_address(config, has_accounts=False)
    assert check_address(config, has_accounts=True) is None
    assert check_address(replace(config, allow_anonymous=True), has_accounts=False) is None


def test_an_admin_address_beyond_loopback_needs_keys_too() -> None:
    config = replace(ServerConfig(), admin_host="0.0.0.0")
    with pytest.raises(InvalidRequest, match=r"0\.0\.0\.0 without keys"):
        check_address(config, has_accounts=False)
    assert check_address(config, has_accounts=True) is None


@pytest.mark.parametrize("name", ["port", "admin_port"])
def test_a_port_that_is_taken_is_named_before_anything_is_loaded(name: str) -> None:
    free = replace(ServerConfig(), port=0, admin_port=0)
    check_ports(free)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        option = "--" + name.replace("_", "-")
        with pytest.raises(InvalidRequest, match=f"127.0.0.1:{port}.*in use; choose another port with {option}"):
            check_ports(replace(free, **{name: port}))


COLLECTOR = """
import gc, os, signal
from pathlib import Path
from quicksilver.server.run import run, serve_until_stopped
from tests.server import slow_server
services = slow_server.make_services(Path("."), 0, 1.0)
def announce(config):
    print(gc.get_threshold(), gc.get_freeze_count() > 1000, config.port > 0, config.admin_port > 0)
    os.kill(os.getpid(), signal.SIGTERM)
apps = slow_server.make_apps(services)
run(serve_until_stopped(*apps, services.config, announce))
"""


def test_the_collector_is_set_before_the_first_connection_and_real_ports_are_announced(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", COLLECTOR], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"{COLLECT_AFTER} True True True", done.stderr


async def test_draining_waits_for_open_requests_up_to_its_limit() -> None:
    open_requests = OpenRequests()
    assert await open_requests.drain(0.01)
    with open_requests.counted():
        assert not await open_requests.drain(0.01)
        draining = asyncio.create_task(open_requests.drain(10))
        await asyncio.sleep(0)
        assert not draining.done()
    assert await draining


async def open_stream(served: Served) -> tuple[Call, asyncio.Event]:
    """A stream that has sent its first piece and waits for the event before the others."""
    go_on = asyncio.Event()
    script = served.engine.script
    served.engine.script = lambda r: [*list(script(r))[:1], go_on.wait, *list(script(r))[1:]]
    call = Call(served.app, CHAT, chat(stream=True))
    call.start()
    await call.wait_for_sent(2)
    return call, go_on


async def test_while_draining_new_requests_are_turned_away_and_open_streams_go_on(served: Served) -> None:
    call, go_on = await open_stream(served)
    draining = asyncio.create_task(served.services.open_requests.drain(10))
    await asyncio.sleep(0)
    refused = await served.post(CHAT, chat())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert refused.headers["connection"] == "close"
    assert refused.headers["retry-after"] == "1"
    assert (await served.get("/ready")).json()["status"] == "draining"
    go_on.set()
    await call.finish()
    assert call.text.endswith("data: [DONE]\n\n")
    assert await draining


async def test_a_stream_that_outlasts_the_drain_ends_with_an_error(served: Served) -> None:
    call, go_on = await open_stream(served)
    assert not await served.services.open_requests.drain(0.01)
    await call.finish()
    assert not go_on.is_set()
    assert not served.services.open_requests.waiting
    last = call.text.strip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"


class Process:
    """A server of its own process, and a stream that is open on it."""

    def __init__(self, home: Path, drain_s: float) -> None:
        self.home = home
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "tests.server.slow_server", str(home), str(self.port), str(drain_s)]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        self.url = f"http://127.0.0.1:{self.port}"
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        while self.process.poll() is None:
            try:
                httpx.get(f"{self.url}/health")
                return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError("the server did not start")

    def ready(self) -> str:
        return str(httpx.get(f"{self.url}/ready").json()["status"])


@pytest.fixture
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    process = Process(tmp_path, request.param)
    yield process
    if process.process.poll() is None:
        process.process.kill()
    process.process.wait()


@pytest.mark.parametrize("process", [20.0], indirect=True)
def test_sigterm_lets_open_streams_finish_and_exits_cleanly(process: Process) -> None:
    with httpx.stream("POST", process.url + CHAT, json=chat(stream=True), timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.process.send_signal(signal.SIGTERM)
        while process.ready() != "draining":
            time.sleep(0.01)
        refused = httpx.post(process.url + CHAT, json=chat())
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        (process.home / "go").touch()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert process.process.wait(10) == 0


@pytest.mark.parametrize("process", [20.0], indirect=True)
def test_a_second_signal_does_not_wait(process: Process) -> None:
    with httpx.stream("POST", process.url + CHAT, json=chat(stream=True), timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.process.send_signal(signal.SIGTERM)
        while process.ready() != "draining":
            time.sleep(0.01)
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(10) == 1
