"""`/v1/decisions` and `/v1/systemone`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.endpoints.decisions.calibration import calibration_of
from quicksilver.server.endpoints.decisions.format import DecisionFormat, SystemOneFormat
from quicksilver.server.endpoints.decisions.plan import plan_decisions, plan_system_one
from quicksilver.server.endpoints.decisions.wire import DecisionBody, DecisionReply, SystemOneBody, SystemOneReply
from quicksilver.server.generation.respond import respond
from quicksilver.server.http.body import read_for_model
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.openapi import answers, takes
from quicksilver.server.services import RouteKind

router = APIRouter(prefix="/v1", tags=["decisions"])


@router.post("/decisions", responses=answers(DecisionReply), openapi_extra=takes(DecisionBody))
async def decisions(request: Request) -> Response:
    """Up to 400 typed questions about one input."""
    body, services = await read_for_model(request, DecisionBody, RouteKind.CHAT)
    plan = await plan_decisions(body, services, caller_of(request).tenant)
    return await respond(request, services, body, plan, DecisionFormat(plan, body, calibration_of(services.model_id)))


@router.post("/systemone", responses=answers(SystemOneReply), openapi_extra=takes(SystemOneBody))
async def system_one(request: Request) -> Response:
    """The same in TypeSafe's form."""
    body, services = await read_for_model(request, SystemOneBody, RouteKind.CHAT)
    plan = await plan_system_one(body, services, caller_of(request).tenant)
    return await respond(request, services, body, plan, SystemOneFormat(plan, body, calibration_of(services.model_id)))
