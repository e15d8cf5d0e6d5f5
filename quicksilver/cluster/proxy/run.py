"""run_route: the router's listeners, health checks and drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from quicksilver.cluster.proxy.app import RouteApp
from quicksilver.cluster.proxy.config import RouteConfig
from quicksilver.cluster.proxy.health import HealthChecks
from quicksilver.cluster.proxy.metrics import status_of, status_page
from quicksilver.cluster.proxy.server_state import RoutedServer
from quicksilver.errors import QuicksilverError
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.errors import error_response
from quicksilver.server.http.guard import check_host
from quicksilver.server.run import make_listener, stop_on_signal, tell_to_exit, trim_memory
from quicksilver.worker.collector import collect_rarely


@asynccontextmanager
async def open_route(config: RouteConfig, listener: ServerConfig) -> AsyncIterator[RouteApp]:
    """The router after its first health checks, which continue until it is closed."""
    servers = [RoutedServer(i + 1, address, config) for i, address in enumerate(config.addresses)]
    checks = HealthChecks(servers, config)
    await checks.check_all()
    checking = asyncio.create_task(checks.run())
    try:
        yield RouteApp(servers, config, listener)
    finally:
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        for server in servers:
            server.close()


def build_admin(app: RouteApp) -> ASGIApp:
    """`/status` as JSON, `/` as a page, and `/metrics`; for a loopback port."""

    def status() -> dict[str, object]:
        return status_of(list(app.servers.values()), is_draining=app.open_requests.is_draining)

    async def show_status(request: Request) -> Response:
        return JSONResponse(status())

    async def show_page(request: Request) -> Response:
        return HTMLResponse(
            status_page(status()), headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        )

    async def show_metrics(request: Request) -> Response:
        return Response(app.metrics.render(list(app.servers.values())), media_type=CONTENT_TYPE_LATEST)

    routes = {"/": show_page, "/status": show_status, "/metrics": show_metrics}
    admin = Starlette(routes=[Route(path, handler) for path, handler in routes.items()])

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses foreign Host headers, by which a web page could read the status."""
        try:
            check_host(Headers(scope=scope), replace(app.listener, hosts=ServerConfig().hosts))
        except QuicksilverError as error:
            await error_response(error)(scope, receive, send)
        else:
            await admin(scope, receive, send)

    return checked


async def run_route(
    config: RouteConfig, listener: ServerConfig, announce: Callable[[ServerConfig, RouteApp], None]
) -> None:
    """Serves until the process is told to stop. The first signal drains, the second one ends the process."""
    async with open_route(config, listener) as app:
        listeners = (
            make_listener(app, listener.host, listener.port, listener),
            make_listener(build_admin(app), listener.admin_host, listener.admin_port, listener),
        )
        collect_rarely()  # garbage collection
        serving = [asyncio.create_task(each.serve()) for each in listeners]
        tasks = [asyncio.create_task(stop_on_signal(listeners, listener, app.open_requests))]
        tasks.append(asyncio.create_task(trim_memory()))
        try:
            while not all(each.started for each in listeners) and not any(task.done() for task in serving):
                await asyncio.sleep(0.01)
            ports = [int(each.servers[0].sockets[0].getsockname()[1]) for each in listeners]
            announce(replace(listener, port=ports[0], admin_port=ports[1]), app)
            await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tell_to_exit(listeners)
            await asyncio.gather(*serving)
            for task in tasks:
                task.cancel()
