"""Runs the two listeners: refuses an unsafe address, serves, drains on the first signal, exits on the second.

While draining the sockets stay open, so that new requests get a 503 and not a refused connection. Open replies may
finish within `drain_s`; after that a stream ends with an error.
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import ASGIApp

from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig
from quicksilver.server.endpoints.files.store import sweep_files
from quicksilver.server.http.connections import has_input
from quicksilver.server.http.protocol import protocol_for
from quicksilver.server.http.request_record import OpenRequests
from quicksilver.worker.collector import collect_rarely

log = logging.getLogger("quicksilver.server")

FORCED_EXIT_S = 3
# Seconds between two returns of freed memory to the operating system.
TRIM_S = 30.0
Result = TypeVar("Result")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Turns of the event loop from a connection in the kernel's queue to its protocol object, and how often they are
# repeated while further connections arrive.
ACCEPT_TURNS, MAX_ACCEPT_ROUNDS = 4, 64


class Listener(uvicorn.Server):
    """uvicorn without its signal handling, which does not drain."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts connections that wait in the kernel before the sockets close, which would reset them."""
        listening = [each.fileno() for server in self.servers for each in server.sockets]
        for _ in range(MAX_ACCEPT_ROUNDS):
            for _ in range(ACCEPT_TURNS):
                await asyncio.sleep(0)
            if not has_input(*listening):
                break
        await super().shutdown(sockets)


def check_address(config: ServerConfig, *, has_accounts: bool) -> None:
    """Listening on a public address without keys requires --allow-anonymous."""
    if has_accounts or config.allow_anonymous:
        return
    for host, param in ((config.host, "host"), (config.admin_host, "admin_host")):
        if not is_loopback(host):
            raise InvalidRequest(
                f"Refusing to listen on {host} without keys: turn accounts on, or insist with --allow-anonymous.",
                param=param,
            )


def check_ports(config: ServerConfig) -> None:
    """Refuses a port that is in use, before anything is loaded."""
    listeners = ((config.host, config.port, "--port"), (config.admin_host, config.admin_port, "--admin-port"))
    for host, port, option in listeners:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host.strip("[]"), port), family=family).close()
        except OSError as error:
            message = (
                f"Cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; choose another port with {option}."
            )
            raise InvalidRequest(message, param=option) from None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs the server's main coroutine on its event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def trim_memory() -> None:
    """Returns freed memory to the operating system now and then. Large bodies leave holes in the heap of glibc, which
    it does not return by itself; other C libraries have no such function."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    while True:
        await asyncio.sleep(TRIM_S)
        await asyncio.to_thread(trim, 0)


async def serve_until_stopped(
    app: FastAPI,
    admin_app: FastAPI,
    config: ServerConfig,
    announce: Callable[[ServerConfig], None] = lambda _: None,
) -> bool:
    """Serves the API and the admin routes until the process is told to stop; whether every open reply could finish.

    `announce` is called when both listeners accept connections, with their ports.
    """
    listeners = (
        make_listener(app, config.host, config.port, config),
        make_listener(admin_app, config.admin_host, config.admin_port, config),
    )

    def announce_ports() -> None:
        port, admin_port = (int(listener.servers[0].sockets[0].getsockname()[1]) for listener in listeners)
        announce(replace(config, port=port, admin_port=admin_port))

    return await _serve(app, listeners, [listener.serve() for listener in listeners], config, announce_ports)


async def serve_socket_until_stopped(
    app: FastAPI,
    listening: socket.socket,
    config: ServerConfig,
    announce: Callable[[], None],
    on_drained: Callable[[], None],
) -> bool:
    """As `serve_until_stopped`, for one API process of several: the API alone, on a socket that listens already.

    After `on_drained` the process still refuses new requests, until a second signal or the end of `drain_s`: the other
    processes may still be draining, and the kernel gives this one its share of connections.
    """
    listener = make_listener(app, config.host, config.port, config)
    return await _serve(app, (listener,), [listener.serve([listening])], config, announce, on_drained)


async def _serve(
    app: FastAPI,
    listeners: tuple[Listener, ...],
    runs: Sequence[Coroutine[Any, Any, None]],
    config: ServerConfig,
    announce: Callable[[], None],
    on_drained: Callable[[], None] | None = None,
) -> bool:
    open_requests: OpenRequests = app.state.services.open_requests
    check_address(config, has_accounts=app.state.services.accounts is not None)
    collect_rarely()
    batches = asyncio.create_task(app.state.batches.watch())
    sweeping = asyncio.create_task(sweep_files(app.state.services.storage))
    stop = asyncio.create_task(stop_on_signal(listeners, config, open_requests, on_drained))
    serving = [asyncio.create_task(run) for run in runs]
    announcing = asyncio.create_task(_announce(listeners, announce))
    trimming = asyncio.create_task(trim_memory())
    try:
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
    finally:
        all_finished = open_requests.num_open == 0
        tell_to_exit(listeners)
        await asyncio.gather(*serving)
        stop.cancel()
        announcing.cancel()
        trimming.cancel()
        batches.cancel()
        sweeping.cancel()
    return all_finished


async def _announce(listeners: tuple[Listener, ...], announce: Callable[[], None]) -> None:
    while not all(listener.started for listener in listeners):
        await asyncio.sleep(0.01)
    announce()


def make_listener(app: ASGIApp, host: str, port: int, config: ServerConfig) -> Listener:
    return Listener(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=protocol_for(config),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(config.timeouts.keep_alive_s),
            timeout_graceful_shutdown=FORCED_EXIT_S,
        )
    )


def stop_signals() -> asyncio.Queue[int]:
    """The signals to stop this process, as they arrive."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signals.put_nowait, number)
    return signals


async def stop_on_signal(
    listeners: tuple[Listener, ...],
    config: ServerConfig,
    open_requests: OpenRequests,
    on_drained: Callable[[], None] | None = None,
) -> None:
    """Drains after the first signal, and tells the listeners to exit after that or after a second signal.

    The handlers stay until the loop closes: a late signal must not cut off what is being written at the end.
    """
    signals = stop_signals()
    await signals.get()
    log.info("draining", extra={"open": open_requests.num_open, "seconds": config.timeouts.drain_s})
    drained = asyncio.create_task(open_requests.drain(config.timeouts.drain_s))
    again = asyncio.create_task(signals.get())
    await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
    if on_drained is not None and drained.done():
        on_drained()
        await asyncio.wait({again}, timeout=config.timeouts.drain_s)
    drained.cancel()
    again.cancel()
    tell_to_exit(listeners)


def tell_to_exit(listeners: tuple[Listener, ...]) -> None:
    for listener in listeners:
        listener.should_exit = True
