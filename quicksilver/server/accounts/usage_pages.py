"""Usage over time as OpenAI's pages. A page holds consecutive buckets; its cursor is the start of the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quicksilver.accounts.records import MICRO, WIDTHS, UsageBucket, UsageLine, UsageQuery
from quicksilver.errors import InvalidRequest
from quicksilver.server.accounts.usage_wire import CostResult, CostSpanQuery, SpanQuery, UsageResult, UsageSpanQuery

GROUPS = {"project_id": "project", "user_id": "user", "api_key_id": "key", "model": "model", "line_item": "model"}
DEFAULT_BUCKETS = {"1h": 24, "1d": 7}
MAX_BUCKETS = {"1h": 168, "1d": 180}


@dataclass(frozen=True, slots=True)
class Span:
    """One page of a query, and where the next one starts."""

    query: UsageQuery
    next_page: str | None


def usage_span(query: UsageSpanQuery, now: float) -> Span:
    return _span(query, tuple(query.models), query.group_by, now)


def cost_span(query: CostSpanQuery, now: float) -> Span:
    return _span(query, tuple(query.line_items), query.group_by, now)


def _span(query: SpanQuery, models: tuple[str, ...], group_by: Sequence[str], now: float) -> Span:
    width_s, end = WIDTHS[query.bucket_width], query.end_time or int(now) + 1
    limit = query.limit or DEFAULT_BUCKETS[query.bucket_width]
    if limit > MAX_BUCKETS[query.bucket_width]:
        raise InvalidRequest(f"limit is at most {MAX_BUCKETS[query.bucket_width]}", param="limit")
    start = _page_start(query, width_s, end)
    stop = (start // width_s + limit) * width_s
    whole = UsageQuery(
        start=start,
        end=min(end, stop),
        width=query.bucket_width,
        group_by=tuple(dict.fromkeys(GROUPS[name] for name in group_by)),
        models=models,
        key_ids=tuple(query.api_key_ids),
        project_ids=tuple(query.project_ids),
        user_ids=tuple(query.user_ids),
    )
    return Span(whole, f"page_{stop}" if stop < end else None)


def _page_start(query: SpanQuery, width_s: int, end: int) -> int:
    if query.page is None:
        return query.start_time
    start = int(query.page.removeprefix("page_"))
    if start % width_s or not query.start_time < start < end:
        raise InvalidRequest("page: not a cursor of this query", param="page")
    return start


def span_page(
    span: Span, buckets: Sequence[UsageBucket], result: Callable[[UsageLine], UsageResult | CostResult]
) -> dict[str, Any]:
    data = [
        {
            "object": "bucket",
            "start_time": bucket.start,
            "end_time": bucket.end,
            "results": [result(line) for line in bucket.lines],
        }
        for bucket in buckets
    ]
    return {"object": "page", "data": data, "has_more": span.next_page is not None, "next_page": span.next_page}


def usage_result(line: UsageLine) -> UsageResult:
    return {
        "object": "organization.usage.completions.result",
        "num_model_requests": line.requests,
        "input_tokens": line.input_tokens,
        "input_cached_tokens": line.cached_tokens,
        "input_uncached_tokens": line.input_tokens - line.cached_tokens,
        "output_tokens": line.output_tokens,
        "project_id": line.project_id,
        "user_id": line.user_id,
        "api_key_id": line.key_id,
        "model": line.model,
        "batch": None,
    }


def cost_result(line: UsageLine) -> CostResult:
    return {
        "object": "organization.costs.result",
        "amount": {"value": line.cost / MICRO, "currency": "credits", "micro_credits": line.cost},
        "line_item": line.model,
        "project_id": line.project_id,
        "user_id": line.user_id,
        "api_key_id": line.key_id,
    }
