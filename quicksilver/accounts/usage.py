"""Who used how much of which model, by the hour. Written with each settlement, so it always equals the ledger.

Reads return plain records, and `usage_page` the shape that OpenAI's organisation usage reads have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, select

from quicksilver.accounts.identity import Identity, Scope
from quicksilver.accounts.records import Charge
from quicksilver.accounts.schema import api_keys, purses, usage
from quicksilver.accounts.store import Store, adding
from quicksilver.errors import InvalidRequest

HOUR_S = 3600
WIDTHS = {"1h": HOUR_S, "1d": 24 * HOUR_S}
GROUPS = ("key", "model", "project", "user")
MAX_BUCKETS = 31 * 24
_COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost")


class Rollup:
    """Charges of one transaction, summed before they are written."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, int], list[int]] = {}

    def add(self, key_id: str, model: str, now: float, charge: Charge) -> None:
        sums = self._sums.setdefault((key_id, model, int(now) // HOUR_S), [0] * len(_COUNTS))
        used = charge.usage
        more = (1, used.prompt_tokens, used.cached_tokens, used.completion_tokens, charge.cost)
        sums[:] = [have + extra for have, extra in zip(sums, more, strict=True)]

    def save(self, connection: Connection) -> None:
        if not self._sums:
            return
        rows = [
            dict(zip(("key_id", "model", "hour", *_COUNTS), (*key, *sums), strict=True))
            for key, sums in sorted(self._sums.items())
        ]
        connection.execute(adding(connection.dialect.name, usage, ("key_id", "model", "hour"), _COUNTS), rows)


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A span of time (unix seconds, end not included) cut into buckets, each grouped as asked."""

    start: int
    end: int
    width: str = "1d"
    group_by: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """Only these models; empty: all."""

    def __post_init__(self) -> None:
        if self.width not in WIDTHS:
            raise InvalidRequest(f"bucket width is one of {', '.join(WIDTHS)}", param="bucket_width")
        if not set(self.group_by) <= set(GROUPS):
            raise InvalidRequest(f"usage is grouped by {', '.join(GROUPS)}", param="group_by")
        if not 0 <= self.start < self.end <= 2**40 or self.end - self.start > MAX_BUCKETS * self.width_s:
            raise InvalidRequest(f"start must lie before end, at most {MAX_BUCKETS} buckets apart", param="start_time")

    @property
    def width_s(self) -> int:
        return WIDTHS[self.width]


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Sums over one group of one bucket; what was not grouped by is None. `cost` in micro-credits."""

    key_id: str | None = None
    model: str | None = None
    project_id: str | None = None
    user_id: str | None = None
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class UsageBucket:
    """One slice of time; empty ones are there too."""

    start: int
    end: int
    lines: tuple[UsageLine, ...] = field(default=())


def read_usage(store: Store, by: Identity, query: UsageQuery) -> list[UsageBucket]:
    """Usage that `by` may see: all of it for an admin, else that of its own project."""
    by.require(Scope.USAGE)
    with store.read() as connection:
        found = connection.execute(_select(by, query)).all()
    lines: dict[int, dict[tuple[str | None, ...], UsageLine]] = {}
    for row in found:
        bucket = lines.setdefault(row.hour * HOUR_S // query.width_s, {})
        _add_to(bucket, _group_of(row, query.group_by), row)
    first, last = query.start // query.width_s, -(-query.end // query.width_s)
    return [_bucket(number, query.width_s, lines.get(number, {})) for number in range(first, last)]


def _select(by: Identity, query: UsageQuery) -> Any:
    found = select(usage, purses.c.path, api_keys.c.user_id).join(purses, purses.c.id == usage.c.key_id)
    found = found.join(api_keys, api_keys.c.id == usage.c.key_id)
    found = found.where(usage.c.hour >= query.start // HOUR_S, usage.c.hour < -(-query.end // HOUR_S))
    if not by.is_admin:
        found = found.where(purses.c.path.startswith(f"{by.org_id}/{by.project_id}/", autoescape=True))
    if query.models:
        found = found.where(usage.c.model.in_(query.models))
    return found.order_by(usage.c.hour, usage.c.key_id, usage.c.model)


def _group_of(row: Any, group_by: Collection[str]) -> tuple[str | None, ...]:
    values = {"key": row.key_id, "model": row.model, "project": row.path.split("/")[1], "user": row.user_id}
    return tuple(values[name] if name in group_by else None for name in GROUPS)


def _add_to(bucket: dict[tuple[str | None, ...], UsageLine], group: tuple[str | None, ...], row: Any) -> None:
    key_id, model, project_id, user_id = group
    line = bucket.get(group) or UsageLine(key_id, model, project_id, user_id)
    bucket[group] = replace(line, **{name: getattr(line, name) + getattr(row, name) for name in _COUNTS})


def _bucket(number: int, width_s: int, lines: dict[tuple[str | None, ...], UsageLine]) -> UsageBucket:
    return UsageBucket(number * width_s, (number + 1) * width_s, tuple(lines.values()))


def usage_page(buckets: Sequence[UsageBucket]) -> dict[str, Any]:
    """The buckets as OpenAI's organisation usage endpoint returns them."""
    data = [
        {
            "object": "bucket",
            "start_time": bucket.start,
            "end_time": bucket.end,
            "results": [_result(line) for line in bucket.lines],
        }
        for bucket in buckets
    ]
    return {"object": "page", "data": data, "has_more": False, "next_page": None}


def _result(line: UsageLine) -> dict[str, Any]:
    return {
        "object": "organization.usage.completions.result",
        "num_model_requests": line.requests,
        "input_tokens": line.input_tokens,
        "input_cached_tokens": line.cached_tokens,
        "output_tokens": line.output_tokens,
        "project_id": line.project_id,
        "user_id": line.user_id,
        "api_key_id": line.key_id,
        "model": line.model,
        "batch": None,
    }
