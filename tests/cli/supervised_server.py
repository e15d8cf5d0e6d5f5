"""A server of several API processes around one scripted worker, with accounts.

`python -m tests.cli.supervised_server HOME PORT ADMIN_PORT` is the supervisor; it starts its API processes with
`python -m tests.cli.supervised_server HOME PORT ADMIN_PORT SOCKET_NUMBER`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.service import Accounts
from quicksilver.cli import api_process
from quicksilver.cli.supervisor import report_to, supervise
from quicksilver.core import EngineClient
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.logs import log_to_stderr
from quicksilver.server.http.metrics import forget_process
from quicksilver.server.processes import ApiProcesses, listening_sockets
from quicksilver.server.run import serve_socket_until_stopped
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.worker.client import RemoteEngine
from quicksilver.worker.control import ApiState, ControlServer
from quicksilver.worker.pool import EnginePool, PooledModel
from quicksilver.worker.program import WorkerConfig
from quicksilver.worker.shared import ControlClient, SharedEngine
from tests.support.small_tokenizer import small_tokenizer

NUM_PROCESSES = 2
WORKER = (sys.executable, "-m", "tests.support.scripted_worker")


async def open_accounts(home: Path) -> Accounts:
    return await Accounts.open(f"sqlite:///{home}/books.db", AccountsConfig(pepper_path=home / "pepper"))


def make_services(engine: EngineClient, accounts: Accounts, config: ServerConfig) -> Services:
    tokenizer = small_tokenizer()
    return Services(engine, tokenizer, ChatTemplate.own(tokenizer), accounts=accounts, config=config)


async def serve_api(home: Path, config: ServerConfig, number: int) -> None:
    async with AsyncExitStack() as stack:
        control = await ControlClient(home / "control.sock").start()
        drained = asyncio.Event()
        watch = asyncio.create_task(api_process.stop_without_supervisor(drained))
        stack.callback(watch.cancel)
        engine = await SharedEngine("nano", control).start()
        stack.push_async_callback(engine.close)
        await engine.wait_if_loaded()
        accounts = await open_accounts(home)
        stack.push_async_callback(accounts.close)
        await serve_socket_until_stopped(
            build_app(make_services(engine, accounts, config)),
            socket.socket(fileno=number),
            config,
            lambda: control.report(ApiState.SERVING),
            lambda: api_process.report_drained(control, drained),
        )


async def run_supervisor(home: Path, config: ServerConfig) -> None:
    model = PooledModel("nano", WorkerConfig("nano"))
    pool = EnginePool([model], start_engine=lambda _: RemoteEngine(WORKER))
    (metrics := home / "metrics").mkdir()
    sockets = listening_sockets(config.host, config.port, NUM_PROCESSES)
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    command = (sys.executable, "-m", "tests.cli.supervised_server", *sys.argv[1:])
    processes = ApiProcesses(command, b"", sockets, env, on_end=lambda pid: forget_process(pid, metrics))
    control = await ControlServer(pool, home / "control.sock", report_to(processes)).start()
    accounts = await open_accounts(home)
    await pool.start()
    services = replace(make_services(pool.engines["nano"], accounts, config), metrics_folder=metrics)
    try:
        await supervise(processes, services, lambda _: print(*processes.pids, flush=True))
    finally:
        await accounts.close()
        await control.close()
        await pool.close()


def main() -> None:
    home = Path(sys.argv[1])
    config = ServerConfig(home=home, port=int(sys.argv[2]), admin_port=int(sys.argv[3]))
    log_to_stderr("info")
    if len(sys.argv) > 4:
        sys.stdin.buffer.readline()
        asyncio.run(serve_api(home, config, int(sys.argv[4])))
    else:
        asyncio.run(run_supervisor(home, config))


if __name__ == "__main__":
    main()
