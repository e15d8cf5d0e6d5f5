"""`/v1/organization/usage/completions` and `/v1/organization/costs`, as in OpenAI's admin API, on both listeners.

On the main listener a key gets the usage of its own project; on the admin listener, of all projects. Needs the scope
`usage`.
"""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from quicksilver.server.accounts.usage_pages import cost_result, cost_span, span_page, usage_result, usage_span
from quicksilver.server.accounts.usage_wire import CostPage, CostSpanQuery, UsagePage, UsageSpanQuery
from quicksilver.server.http.guard import accounts_of, identity_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.openapi import answers_read
from quicksilver.server.http.query import asks, read_query

router = APIRouter(prefix="/v1/organization", tags=["usage"])


@router.get("/usage/completions", responses=answers_read(UsagePage), openapi_extra=asks(UsageSpanQuery))
async def usage(request: Request) -> Response:
    span = usage_span(read_query(request, UsageSpanQuery), time.time())
    buckets = await accounts_of(request).usage(identity_of(request), span.query)
    return json_response(span_page(span, buckets, usage_result))


@router.get("/costs", responses=answers_read(CostPage), openapi_extra=asks(CostSpanQuery))
async def costs(request: Request) -> Response:
    span = cost_span(read_query(request, CostSpanQuery), time.time())
    buckets = await accounts_of(request).usage(identity_of(request), span.query)
    return json_response(span_page(span, buckets, cost_result))
