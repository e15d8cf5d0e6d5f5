"""ListQuery: the query of lists of stored objects, in OpenAI's form."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from starlette.requests import Request
from typing_extensions import TypedDict

from quicksilver.server.accounts.usage_wire import Query

MAX_LISTED = 1000
DEFAULT_LISTED = 20
_METADATA = re.compile(r"metadata\[(.{1,64})\]")


class ListQuery(Query):
    """Other names are ignored, since clients send options that change nothing here, such as `include`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    # 0 counts as absent.
    limit: Annotated[int, Field(ge=0, le=MAX_LISTED), AfterValidator(lambda limit: limit or DEFAULT_LISTED)] = 20
    after: Annotated[str, Field(max_length=256)] = ""
    order: Literal["asc", "desc"] = "desc"


class AscendingQuery(ListQuery):
    order: Literal["asc", "desc"] = "asc"


class ObjectList(TypedDict):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedReply(TypedDict):
    id: str
    object: str
    deleted: bool


def wanted_metadata(request: Request) -> dict[str, str]:
    """The entries that listed objects must have: `?metadata[name]=value`."""
    return {m[1]: value for name, value in request.query_params.items() if (m := _METADATA.fullmatch(name))}
