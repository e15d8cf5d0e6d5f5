"""The supervisor of several API processes: owns the engine workers, the listening sockets and the admin routes.

It serves no API request itself. API processes that end are replaced; the first SIGTERM or SIGINT drains all of them
together, the second one ends them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from quicksilver.cli.api_process import ApiProcessSettings
from quicksilver.cli.console import loading
from quicksilver.cli.serve_adapters import check_adapters
from quicksilver.cli.serve_run import engine_pool, open_accounts, print_announcement, served_engine, trainer_process
from quicksilver.cli.serve_settings import LogSettings, ServeSettings
from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.metrics import forget_process
from quicksilver.server.processes import ApiProcesses, listening_sockets
from quicksilver.server.run import check_address, make_listener, stop_signals
from quicksilver.server.services import ServedModel, Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.worker.control import ApiState, ControlServer
from quicksilver.worker.pool import EnginePool


async def run_supervisor(settings: ServeSettings, num_processes: int, logs: LogSettings) -> None:
    check_address(settings.server, has_accounts=settings.accounts is not None)
    sockets = listening_sockets(settings.server.host, settings.server.port, num_processes)
    settings = replace(settings, server=replace(settings.server, port=sockets[0].getsockname()[1]))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quicksilver-")))
        (metrics := folder / "metrics").mkdir()
        with loading(settings.default.files.name):
            pool = await stack.enter_async_context(engine_pool(settings))
            await check_adapters(settings.models, pool)
        # Opened before the API processes start: migrations run once, and the first admin key is printed once.
        accounts = None
        if settings.accounts:
            accounts = await stack.enter_async_context(open_accounts(*settings.accounts, settings.admin_key_file))
        passed = ApiProcessSettings(settings, folder / "control.sock", logs, num_processes)
        processes = ApiProcesses(
            (sys.executable, "-c", "from quicksilver.cli.api_process import main; main()"),
            passed.encode(),
            sockets,
            {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics)},
            on_end=lambda pid: forget_process(pid, metrics),
        )
        control = await ControlServer(pool, passed.control_socket, report_to(processes)).start()
        stack.push_async_callback(control.close)
        services = replace(admin_services(settings, pool), accounts=accounts, metrics_folder=metrics)

        await stack.enter_async_context(trainer_process(settings, services, pool.engines))

        def announce(config: ServerConfig) -> None:
            print_announcement(settings, services.engine.info, config)

        await supervise(processes, services, announce)


def report_to(processes: ApiProcesses) -> Callable[[int, ApiState], None]:
    def report(pid: int, state: ApiState) -> None:
        (processes.mark_serving if state is ApiState.SERVING else processes.mark_drained)(pid)

    return report


def admin_services(settings: ServeSettings, pool: EnginePool) -> Services:
    """What the admin routes use: engines, accounts, metrics. They encode nothing, so one tokenizer stands for all."""
    files = settings.default.files
    tokenizer = Tokenizer.for_model(files.weights, files.skill)
    template = ChatTemplate.for_tokenizer(tokenizer)
    others = {
        model.files.name: ServedModel(
            model.card, served_engine(model, pool.engines), tokenizer, template, base=model.parent
        )
        for model in settings.models[1:]
    }
    return Services(pool.engines[files.name], tokenizer, template, config=settings.server, others=others)


async def supervise(processes: ApiProcesses, services: Services, announce: Callable[[ServerConfig], None]) -> None:
    """Runs the API processes and the admin routes until the first signal, then drains."""
    signals, config = stop_signals(), services.config
    listener = make_listener(build_admin_app(services), config.admin_host, config.admin_port, config)
    serving = asyncio.create_task(listener.serve())
    try:
        starting = asyncio.create_task(processes.start())
        stopped = asyncio.create_task(signals.get())
        await asyncio.wait({starting, stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            announce(replace(config, admin_port=listener.servers[0].sockets[0].getsockname()[1]))
            await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
        services.open_requests.is_draining = True
        draining = asyncio.create_task(processes.drain())
        again = asyncio.create_task(signals.get())
        limit_s = config.timeouts.drain_s
        await asyncio.wait({draining, again}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (starting, draining, again):
            task.cancel()
    finally:
        await processes.stop()
        listener.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
