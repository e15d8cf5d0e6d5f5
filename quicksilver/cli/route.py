"""`quicksilver route`: an HTTP router in front of several servers that serve the same models."""

from __future__ import annotations

from typing import Annotated

import httpx
import typer
from rich.markup import escape
from rich.table import Table

from quicksilver.cli import options
from quicksilver.cli.addresses import shown_url
from quicksilver.cli.console import errors, out
from quicksilver.cluster.proxy.app import RouteApp
from quicksilver.cluster.proxy.config import Address, AffinityMode, RouteConfig
from quicksilver.cluster.proxy.metrics import COLUMNS
from quicksilver.cluster.proxy.run import run_route
from quicksilver.errors import QuicksilverError
from quicksilver.server.config import LOOPBACK_HOSTS, ServerConfig, Timeouts
from quicksilver.server.http.logs import log_to_stderr
from quicksilver.server.run import check_ports, is_loopback, run

DEFAULT_PORT = 8490


def route(
    to: Annotated[
        list[str],
        typer.Option(envvar="QUICKSILVER_ROUTE_TO", help="Server to send requests to: http://HOST:PORT. Repeat it."),
    ] = [],  # noqa: B006
    host: Annotated[str, typer.Option(envvar="QUICKSILVER_ROUTE_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="QUICKSILVER_ROUTE_PORT", min=0, max=65535, help="Port to listen on.")
    ] = DEFAULT_PORT,
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port for status and metrics, on loopback.", show_default="the port after --port"
        ),
    ] = None,
    affinity: Annotated[
        AffinityMode,
        typer.Option(help="What keeps requests on one server: the beginning of the prompt, or the API key."),
    ] = AffinityMode.PREFIX,
    max_open: Annotated[int, typer.Option(min=1, help="Requests that one server may have open.")] = 1024,
    drain_s: Annotated[float, typer.Option(min=0.0, help="Seconds for open replies after SIGTERM.")] = 30.0,
    allow_host: options.AllowHost = [],  # noqa: B006
    allow_origin: options.AllowOrigin = [],  # noqa: B006
    allow_anonymous: options.AllowAnonymous = False,
    log_level: options.LogLevel = "info",
    log_format: options.LogFormat = "auto",
    show: Annotated[
        bool, typer.Option("--show", help="Print the servers of a running router, found at --admin-port, and exit.")
    ] = False,
) -> None:
    """Route requests to several servers: prefix affinity, health checks, retries before the first byte."""
    admin = admin_port if admin_port is not None else 0 if port == 0 else min(port + 1, 65535)
    if show:
        _show(admin)
        return
    log_to_stderr(log_level, log_format)
    listener = ServerConfig(
        host=host,
        port=port,
        admin_port=admin,
        hosts=(*LOOPBACK_HOSTS, *allow_host),
        origins=tuple(allow_origin),
        max_open=max_open * max(len(to), 1),
        timeouts=Timeouts(drain_s=drain_s),
    )
    config = RouteConfig(
        tuple(Address.parse(url) for url in to),
        affinity=affinity,
        allow_anonymous=allow_anonymous,
        is_public=not is_loopback(host),
        max_open=max_open,
    )
    check_ports(listener)
    run(run_route(config, listener, _announce))


def _announce(listener: ServerConfig, app: RouteApp) -> None:
    url = escape(shown_url(listener.host, listener.port))
    errors.print(f"routing [bold]{url}/v1[/] to:", highlight=False, soft_wrap=True)
    for server in app.servers.values():
        errors.print(f"  {server.number}  {server.name}  {server.health}", markup=False, highlight=False)
    admin = shown_url(listener.admin_host, listener.admin_port)
    errors.print(f"status and metrics: {admin}/", markup=False, highlight=False, soft_wrap=True)


def _show(admin_port: int) -> None:
    url = f"http://127.0.0.1:{admin_port}/status"
    try:
        status = httpx.get(url, timeout=5).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise QuicksilverError(f"no router answers at {url}: {error}") from None
    table = Table(*COLUMNS, title=f"route: {status['status']}")
    for server in status["servers"]:
        table.add_row(*(escape(str(server[column])) for column in COLUMNS))
    out.print(table)
