"""Usage by key, model and hour. The transaction that charges a request updates it, so it always matches the ledger."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, or_, select

from quicksilver.accounts.identity import Identity, Scope
from quicksilver.accounts.records import GROUPS, HOUR_S, Charge, UsageBucket, UsageLine, UsageQuery
from quicksilver.accounts.schema import accounts, api_keys, usage
from quicksilver.accounts.store import Store, adding

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


def read_usage(store: Store, by: Identity, query: UsageQuery) -> list[UsageBucket]:
    """Usage that `by` may see: everything for an admin, otherwise that of its project."""
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
    found = select(usage, accounts.c.path, api_keys.c.user_id).join(accounts, accounts.c.id == usage.c.key_id)
    found = found.join(api_keys, api_keys.c.id == usage.c.key_id)
    found = found.where(usage.c.hour >= query.start // HOUR_S, usage.c.hour < -(-query.end // HOUR_S))
    if not by.is_admin:
        found = found.where(accounts.c.path.startswith(f"{by.org_id}/{by.project_id}/", autoescape=True))
    for column, wanted in ((usage.c.model, query.models), (usage.c.key_id, query.key_ids)):
        found = found.where(column.in_(wanted)) if wanted else found
    if query.user_ids:
        found = found.where(api_keys.c.user_id.in_(query.user_ids))
    if query.project_ids:
        within = (accounts.c.path.contains(f"/{project}/", autoescape=True) for project in query.project_ids)
        found = found.where(or_(*within))
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
