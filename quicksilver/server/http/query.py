"""A query string to a checked model. Lists may come as `a=1&a=2`, `a[]=1` or `a=1,2`: clients differ.

Errors name the parameter. A name that the model ignores may come any number of times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_origin

from fastapi import Request

from quicksilver.errors import InvalidRequest, NotFound
from quicksilver.server.accounts.usage_wire import PageQuery, Query
from quicksilver.server.http.body import validate

QueryType = TypeVar("QueryType", bound=Query)
Item = TypeVar("Item")

_ID = re.compile(r"[a-z]{2,8}_[0-9a-f]{24}")


def read_query(request: Request, model: type[QueryType]) -> QueryType:
    fields: dict[str, Any] = {}
    for name, values in _groups(request):
        field = model.model_fields.get(name)
        is_list = field is not None and get_origin(field.annotation) is list
        if field is not None and not is_list and len(values) > 1:
            raise InvalidRequest(f"{name} may come once", param=name)
        fields[name] = [part for value in values for part in value.split(",")] if is_list else values[0]
    return validate(model, fields)


def _groups(request: Request) -> Iterator[tuple[str, list[str]]]:
    grouped: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        grouped.setdefault(name.removesuffix("[]"), []).append(value)
    yield from grouped.items()


def asks(model: type[Query]) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads this query."""
    schema = model.model_json_schema()
    needed = schema.get("required", ())
    parameters = [
        {"name": name, "in": "query", "required": name in needed, "schema": field}
        for name, field in schema["properties"].items()
    ]
    return {"parameters": parameters}


def checked_id(text: str) -> str:
    """Returns an id of the right form; any other is a 404 without a database query."""
    if _ID.fullmatch(text) is None:
        raise NotFound("no such organisation, project or key")
    return text


def list_page(replies: Sequence[Item], ids: Sequence[str], query: PageQuery) -> dict[str, Any]:
    """OpenAI's list: the items after the one whose id is `after`, at most `limit` of them."""
    if query.after and query.after not in ids:
        raise InvalidRequest("after: no such object in this list", param="after")
    first = ids.index(query.after) + 1 if query.after else 0
    shown, last = replies[first : first + query.limit], first + query.limit
    return {
        "object": "list",
        "data": list(shown),
        "first_id": ids[first] if shown else None,
        "last_id": ids[first + len(shown) - 1] if shown else None,
        "has_more": last < len(replies),
    }
