"""The program of one API process of several. `supervisor.py` starts it with the number of its listening socket.

The first line of standard input has the settings. The process ends when it is told to, or
when the supervisor ends, which closes standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from quicksilver.cli.serve_run import open_services
from quicksilver.cli.serve_settings import LogSettings, ServeSettings
from quicksilver.server.app import build_app
from quicksilver.server.http.logs import log_to_stderr
from quicksilver.server.run import run, serve_socket_until_stopped
from quicksilver.tuning.settings import JsonLine
from quicksilver.worker.control import ApiState
from quicksilver.worker.shared import ControlClient, SharedEngine


@dataclass(frozen=True, slots=True)
class ApiProcessSettings(JsonLine):
    """What the supervisor passes to an API process."""

    serve: ServeSettings
    control_socket: Path
    logs: LogSettings
    num_processes: int


def for_one_process(settings: ServeSettings, num_processes: int) -> ServeSettings:
    """The settings of one process: limits and helper processes of the whole server are divided."""
    server, pool = settings.server, settings.compile_pool
    return replace(
        settings,
        server=replace(
            server,
            max_open=-(-server.max_open // num_processes),
            max_open_public=-(-server.max_open_public // num_processes),
        ),
        compile_pool=replace(pool, num_processes=-(-pool.num_processes // num_processes)),
    )


async def serve(settings: ApiProcessSettings, listening: socket.socket) -> None:
    async with AsyncExitStack() as stack:
        control = await ControlClient(settings.control_socket).start()
        stack.push_async_callback(control.close)
        drained = asyncio.Event()
        watch = asyncio.create_task(stop_without_supervisor(drained))
        stack.callback(watch.cancel)
        with_workers = [model.files.name for model in settings.serve.with_workers]
        engines = {name: await _engine(stack, name, control) for name in with_workers}
        own = for_one_process(settings.serve, settings.num_processes)
        services = await open_services(stack, own, engines)
        await serve_socket_until_stopped(
            build_app(services),
            listening,
            own.server,
            announce=lambda: control.report(ApiState.SERVING),
            on_drained=lambda: report_drained(control, drained),
        )


async def _engine(stack: AsyncExitStack, model: str, control: ControlClient) -> SharedEngine:
    engine = await SharedEngine(model, control).start()
    stack.push_async_callback(engine.close)
    with contextlib.suppress(TimeoutError):
        await engine.wait_if_loaded()
    return engine


def report_drained(control: ControlClient, drained: asyncio.Event) -> None:
    drained.set()
    control.report(ApiState.DRAINED)


async def stop_without_supervisor(drained: asyncio.Event) -> None:
    """Drains and ends this process when standard input ends. Without a supervisor no second signal follows when the
    others have drained, and a new server needs the port."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    os.kill(os.getpid(), signal.SIGTERM)
    await drained.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    settings = ApiProcessSettings.decode(sys.stdin.buffer.readline())
    log_to_stderr(settings.logs.level, settings.logs.format)
    run(serve(settings, socket.socket(fileno=int(sys.argv[1]))))
