"""build_admin_app: the application for operators, on a loopback port of its own: metrics, probes, and all accounts.

With accounts every route but the probes requires a key: scope `admin` for the accounts, scope `metrics` for the
metrics, which are totals over all tenants.
"""

from __future__ import annotations

import asyncio

from fastapi import Depends, FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from quicksilver import __version__
from quicksilver.core import EngineState
from quicksilver.server.accounts import organizations_route as organizations
from quicksilver.server.accounts import projects_route as projects
from quicksilver.server.accounts import settings_route as arrangements
from quicksilver.server.accounts import usage_route as usage
from quicksilver.server.accounts.wire import ADMIN_BODIES
from quicksilver.server.adapters import AdapterEngine
from quicksilver.server.endpoints.health import route as health
from quicksilver.server.http.guard import Guard, add_refusals, require_admin, require_metrics
from quicksilver.server.http.metrics import ModelFigures, render
from quicksilver.server.http.openapi import describe
from quicksilver.server.services import Services, services_of

ACCOUNTS = (organizations.router, projects.router, arrangements.router, usage.router)


def build_admin_app(services: Services) -> FastAPI:
    app = FastAPI(title="quicksilver admin", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.services = services
    app.include_router(health.router)
    app.add_api_route("/metrics", metrics, methods=["GET"], dependencies=[Depends(require_metrics)])
    for router in ACCOUNTS:
        app.include_router(router, dependencies=[Depends(require_admin)])
    add_refusals(app)
    app.openapi = lambda: describe(app, ADMIN_BODIES)  # type: ignore[method-assign]
    app.add_middleware(Guard)
    return app


async def metrics(request: Request) -> Response:
    """Always answers: without a reply of an engine its last figures are sent, with their age."""
    services = services_of(request)
    # An adapter has no engine of its own.
    with_engines = [each for each in services.by_model.values() if not isinstance(each.engine, AdapterEngine)]
    figures = await asyncio.gather(*(read_figures(each) for each in with_engines))
    return Response(render(services.metrics, figures), media_type=CONTENT_TYPE_LATEST)


async def read_figures(services: Services) -> ModelFigures:
    info = services.known_info
    if info is None or services.engine.health().state is EngineState.UNLOADED:
        return ModelFigures(services.model_id)
    return ModelFigures(services.model_id, info, await services.engine_probe.read())
