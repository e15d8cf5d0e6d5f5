"""Probes: `/health` says that this process answers, `/ready` that an answer can be made."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

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


@router.get("/health", responses={200: {"model": HealthReply}})
async def health() -> Response:
    return json_response({"status": "ok"})


@router.get("/ready", responses={200: {"model": ReadyReply}, 503: {"model": ReadyReply}})
async def ready(request: Request) -> Response:
    services = services_of(request)
    status = readiness(services)
    stats = await services.engine.stats() if status == "ready" else None
    reply: ReadyReply = {
        "status": status,
        "model": services.config.card.id,
        "running": stats.running if stats else 0,
        "waiting": stats.waiting if stats else 0,
    }
    headers = {} if stats else {"retry-after": "1"}
    return json_response(reply, headers, 200 if stats else 503)


def readiness(services: Services) -> str:
    if services.life.is_draining:
        return "draining"
    if services.accounts is not None and services.accounts.needs_restart:
        return "books_broken"
    return "ready" if services.engine.is_ready else "starting"
