"""build_admin_app: the listener for operators, on a loopback port of its own: metrics and probes.

It shows figures of every tenant together and names none.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from quicksilver.core import EngineStats
from quicksilver.errors import QuicksilverError
from quicksilver.server.envelope import add_refusals
from quicksilver.server.guard import Guard
from quicksilver.server.routes import health
from quicksilver.server.services import Services, services_of


def build_admin_app(services: Services) -> FastAPI:
    app = FastAPI(title="quicksilver admin", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = services
    app.include_router(health.router)
    app.add_api_route("/metrics", metrics, methods=["GET"])
    add_refusals(app)
    app.add_middleware(Guard)
    return app


async def metrics(request: Request) -> Response:
    services = services_of(request)
    try:
        stats = await services.engine.stats()
    except QuicksilverError:
        # A dead engine is a figure too: the HTTP counters must stay readable while it restarts.
        stats = EngineStats()
    return Response(services.metrics.render(services.engine.info, stats), media_type=CONTENT_TYPE_LATEST)
