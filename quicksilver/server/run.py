"""Running the two listeners: refuse an unsafe address, serve, drain on the first signal, leave on the second.

While draining the sockets stay open, so that new requests get a 503 and not a refused connection; what is open may
finish within `drain_s`.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop
from fastapi import FastAPI

from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.protocol import protocol_for

log = logging.getLogger("quicksilver.server")

FORCED_EXIT_S = 3
# New objects before the collector looks at them, and how many such looks before it looks at older ones: with a thousand
# open streams the usual numbers stop every stream for a third of a second, again and again.
COLLECT_AFTER = (50_000, 20, 100)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Life:
    """Counts what is open, so that a stop can wait for it. Used on one event loop only."""

    def __init__(self) -> None:
        self.num_open = 0
        # Of them, requests to routes that need no key.
        self.num_open_public = 0
        self.is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def entered(self) -> Iterator[None]:
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
    def entered_public(self) -> Iterator[None]:
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
    """uvicorn without its signal handling, which knows no draining."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        yield


def check_address(config: ServerConfig, *, has_accounts: bool) -> None:
    """An open server on a public address is a gift to strangers, so it takes an explicit word."""
    if is_loopback(config.host) or has_accounts or config.allow_anonymous:
        return
    raise InvalidRequest(
        f"Refusing to listen on {config.host} without keys: turn accounts on, or insist with --allow-anonymous.",
        param="host",
    )


def check_ports(config: ServerConfig) -> None:
    """Says so before anything is loaded when somebody else listens there."""
    for host, port in ((config.host, config.port), (config.admin_host, config.admin_port)):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host.strip("[]"), port), family=family).close()
        except OSError as error:
            hint = "choose others with --port and --admin-port"
            raise InvalidRequest(f"Cannot listen on {host}:{port}: {error.strerror}; {hint}.", param="port") from None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def serve(app: FastAPI, admin_app: FastAPI, config: ServerConfig) -> bool:
    """Blocks until the process is told to stop; whether every open reply could finish."""
    check_address(config, has_accounts=app.state.services.accounts is not None)
    quiet_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve_until_stopped(app, admin_app, config))


def quiet_collector() -> None:
    """What exists now stays as long as the process does: the collector need not walk it, and the rest but rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def serve_until_stopped(app: FastAPI, admin_app: FastAPI, config: ServerConfig) -> bool:
    life: Life = app.state.services.life
    listeners = (
        make_listener(app, config.host, config.port, config),
        make_listener(admin_app, config.admin_host, config.admin_port, config),
    )
    stop = asyncio.create_task(_stop_on_signal(listeners, config, life))
    serving = [asyncio.create_task(listener.serve()) for listener in listeners]
    try:
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
    finally:
        all_finished = life.num_open == 0
        _tell_to_exit(listeners)
        await asyncio.gather(*serving)
        stop.cancel()
    return all_finished


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


async def _stop_on_signal(listeners: tuple[Listener, ...], config: ServerConfig, life: Life) -> None:
    """The handlers stay until the loop closes: a late signal must not cut off what is being written at the end."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signals.put_nowait, number)
    await signals.get()
    log.info("draining", extra={"open": life.num_open, "seconds": config.timeouts.drain_s})
    drained = asyncio.create_task(life.drain(config.timeouts.drain_s))
    again = asyncio.create_task(signals.get())
    await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
    drained.cancel()
    again.cancel()
    _tell_to_exit(listeners)


def _tell_to_exit(listeners: tuple[Listener, ...]) -> None:
    for listener in listeners:
        listener.should_exit = True
