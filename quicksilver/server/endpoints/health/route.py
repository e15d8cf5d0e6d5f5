"""Probes: `/health` is 200 while this process answers, `/ready` while it can serve a paid request."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from quicksilver.core import EngineState, EngineStats
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.services import Services, services_of

router = APIRouter(tags=["health"])


class HealthReply(TypedDict):
    status: str


class ReadyReply(TypedDict):
    status: str
    model: str
    running: int
    waiting: int


# A closed engine is one that is being replaced, or the end of the process. The next request loads an unloaded model.
ENGINE_STATUS = {
    EngineState.READY: "ready",
    EngineState.UNLOADED: "ready",
    EngineState.STARTING: "starting",
    EngineState.CLOSED: "starting",
    EngineState.UNRESPONSIVE: "engine_unresponsive",
}


@router.get("/health", responses={200: {"model": HealthReply}})
async def health() -> Response:
    return json_response({"status": "ok"})


@router.get("/ready", responses={200: {"model": ReadyReply}, 503: {"model": ReadyReply}})
async def ready(request: Request) -> Response:
    services = services_of(request)
    status = readiness(services)
    is_ready = status == "ready"
    # A draining server still has replies to finish; their number is what its operator waits for.
    has_figures = is_ready or status == "draining"
    stats = (await services.engine_probe.read()).stats if has_figures else EngineStats()
    reply: ReadyReply = {
        "status": status,
        "model": services.config.card.id,
        "running": stats.running,
        "waiting": stats.waiting,
    }
    return json_response(reply, {} if is_ready else {"retry-after": "1"}, 200 if is_ready else 503)


def readiness(services: Services) -> str:
    """`ready`, or the first reason why not. Waits for nothing."""
    if services.open_requests.is_draining:
        return "draining"
    if services.accounts is not None and services.accounts.needs_restart:
        return "ledger_broken"
    if services.accounts is not None and not services.accounts.is_writable:
        return "ledger_unavailable"
    if services.grammars is not None and not services.grammars.is_ready:
        return "compiler_unavailable"
    return ENGINE_STATUS[services.engine.health().state]
