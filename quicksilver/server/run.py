"""Runs the two listeners: refuses an unsafe address, serves, drains on the first signal, exits on the second.

While draining the sockets stay open, so that new requests get a 503 and not a refused connection. Open replies may
finish within `drain_s`.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import uvicorn
import uvloop
from fastapi import FastAPI

from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.protocol import protocol_for

log = logging.getLogger("quicksilver.server")

FORCED_EXIT_S = 3
# Thresholds of the garbage collector: new objects per collection of generation 0, and collections of one generation per
# collection of the next.
COLLECT_AFTER = (50_000, 20, 100)
Result = TypeVar("Result")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class OpenRequests:
    """Counts open requests, so that a stop can wait for them. Used on one event loop only."""

    def __init__(self) -> None:
        self.num_open = 0
        # Of them, requests to routes that need no key.
        self.num_open_public = 0
        self.is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """One request in flight, from its head to the last byte of its reply."""
        self.num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if self.num_open == 0:
                self._idle.set()

    @contextmanager
    def counted_public(self) -> Iterator[None]:
        """One request in flight on a route that needs no key, from its routing to the end of its reply."""
        self.num_open_public += 1
        try:
            yield
        finally:
            self.num_open_public -= 1

    async def drain(self, seconds: float) -> bool:
        """Turns new requests away and waits for the open ones; whether all finished in time."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


class Listener(uvicorn.Server):
    """uvicorn without its signal handling, which does not drain."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        yield


def check_address(config: ServerConfig, *, has_accounts: bool) -> None:
    """Listening on a public address without keys requires --allow-anonymous."""
    if is_loopback(config.host) or has_accounts or config.allow_anonymous:
        return
    raise InvalidRequest(
        f"Refusing to listen on {config.host} without keys: turn accounts on, or insist with --allow-anonymous.",
        param="host",
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


def collect_rarely() -> None:
    """Freezes the objects of the start-up and collects rarely: full collections stall 1,000 streams by 0.3 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def serve_until_stopped(
    app: FastAPI,
    admin_app: FastAPI,
    config: ServerConfig,
    announce: Callable[[ServerConfig], None] = lambda _: None,
) -> bool:
    """Serves until the process is told to stop; whether every open reply could finish.

    The one way to start the server. `announce` is called when both listeners accept connections, with their ports.
    """
    open_requests: OpenRequests = app.state.services.open_requests
    check_address(config, has_accounts=app.state.services.accounts is not None)
    collect_rarely()
    listeners = (
        make_listener(app, config.host, config.port, config),
        make_listener(admin_app, config.admin_host, config.admin_port, config),
    )
    stop = asyncio.create_task(_stop_on_signal(listeners, config, open_requests))
    serving = [asyncio.create_task(listener.serve()) for listener in listeners]
    announcing = asyncio.create_task(_announce(listeners, config, announce))
    try:
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
    finally:
        all_finished = open_requests.num_open == 0
        _tell_to_exit(listeners)
        await asyncio.gather(*serving)
        stop.cancel()
        announcing.cancel()
    return all_finished


async def _announce(
    listeners: tuple[Listener, ...], config: ServerConfig, announce: Callable[[ServerConfig], None]
) -> None:
    while not all(listener.started for listener in listeners):
        await asyncio.sleep(0.01)
    port, admin_port = (int(listener.servers[0].sockets[0].getsockname()[1]) for listener in listeners)
    announce(replace(config, port=port, admin_port=admin_port))


def make_listener(app: FastAPI, host: str, port: int, config: ServerConfig) -> Listener:
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


async def _stop_on_signal(listeners: tuple[Listener, ...], config: ServerConfig, open_requests: OpenRequests) -> None:
    """The handlers stay until the loop closes: a late signal must not cut off what is being written at the end."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signals.put_nowait, number)
    await signals.get()
    log.info("draining", extra={"open": open_requests.num_open, "seconds": config.timeouts.drain_s})
    drained = asyncio.create_task(open_requests.drain(config.timeouts.drain_s))
    again = asyncio.create_task(signals.get())
    await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
    drained.cancel()
    again.cancel()
    _tell_to_exit(listeners)


def _tell_to_exit(listeners: tuple[Listener, ...]) -> None:
    for listener in listeners:
        listener.should_exit = True
