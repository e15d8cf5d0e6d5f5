"""How a request waits for the engine: its priority, and how long it may wait. Both come from the operator's limits and
from headers, which every API dialect can send.

| header | value |
|---|---|
| `X-Quicksilver-Priority` | `interactive` (default), or `batch`: admitted after the others, without a time limit |
| `X-Quicksilver-Start-Within` | seconds; a request that cannot start within them gets a 503 at once |
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import Request

from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.http.auth import BATCH_CALLER

PRIORITY, START_WITHIN = "x-quicksilver-priority", "x-quicksilver-start-within"
PRIORITIES = ("interactive", "batch")
MAX_START_S = 3600.0


def with_scheduling(plan: ReplyPlan, request: Request, config: ServerConfig, *, is_background: bool) -> ReplyPlan:
    """The plan with priority and time limit in each of its requests. A background response has no time limit unless
    it states one."""
    is_batch = read_is_batch(request)
    limit_s = read_start_within(request)
    if is_batch:
        limit_s = 0.0
    elif limit_s is None:
        limit_s = 0.0 if is_background else config.start_within_s
    answers = tuple(
        replace(answer, request=replace(answer.request, is_batch=is_batch, start_within_s=limit_s))
        for answer in plan.answers
    )
    return replace(plan, answers=answers)


def read_is_batch(request: Request) -> bool:
    """A line of a batch is a batch request."""
    if BATCH_CALLER in request.scope:
        return True
    stated = request.headers.get(PRIORITY, PRIORITIES[0])
    if stated not in PRIORITIES:
        raise InvalidRequest(f"{PRIORITY}: {' or '.join(PRIORITIES)}", param=PRIORITY)
    return stated == PRIORITIES[1]


def read_start_within(request: Request) -> float | None:
    stated = request.headers.get(START_WITHIN)
    if stated is None:
        return None
    try:
        seconds = float(stated)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_START_S:
        raise InvalidRequest(f"{START_WITHIN}: seconds, more than 0 and at most {MAX_START_S:g}", param=START_WITHIN)
    return seconds
