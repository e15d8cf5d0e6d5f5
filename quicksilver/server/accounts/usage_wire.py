"""Usage and costs over time: OpenAI's organisation reads, their query and their pages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from quicksilver.server.accounts.wire import MAX_LIST, ObjectId
from quicksilver.server.http.fields import Name

MAX_TIME = 2**40
MAX_PAGE = 200

Time = Annotated[int, Field(ge=0, le=MAX_TIME)]
Ids = Annotated[list[ObjectId], Field(max_length=MAX_LIST)]
Width = Literal["1h", "1d"]


class Query(BaseModel):
    """Query strings hold text, so numbers are read out of it; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageQuery(Query):
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    after: Annotated[str, Field(max_length=64)] = ""


class WithinQuery(PageQuery):
    organization_id: Annotated[str, Field(max_length=64)] = ""


class SpanQuery(Query):
    """A span of time in buckets, grouped and filtered."""

    start_time: Time
    end_time: Time | None = None
    bucket_width: Width = "1d"
    limit: Annotated[int, Field(ge=1, le=180)] | None = None
    page: Annotated[str, Field(pattern=r"^page_[0-9]{1,13}$")] | None = None
    project_ids: Ids = []
    user_ids: Ids = []
    api_key_ids: Ids = []


class UsageSpanQuery(SpanQuery):
    models: Annotated[list[Name], Field(max_length=MAX_LIST)] = []
    group_by: list[Literal["project_id", "user_id", "api_key_id", "model"]] = []


class CostSpanQuery(SpanQuery):
    line_items: Annotated[list[Name], Field(max_length=MAX_LIST)] = []
    group_by: list[Literal["project_id", "user_id", "api_key_id", "line_item"]] = []


class UsageResult(TypedDict):
    object: Literal["organization.usage.completions.result"]
    num_model_requests: int
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    batch: None


class AmountReply(TypedDict):
    value: float
    currency: Literal["credits"]
    micro_credits: int


class CostResult(TypedDict):
    object: Literal["organization.costs.result"]
    amount: AmountReply
    line_item: str | None
    project_id: str | None
    user_id: str | None
    api_key_id: str | None


class UsageBucketReply(TypedDict):
    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[UsageResult]


class CostBucketReply(TypedDict):
    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[CostResult]


class SpanPage(TypedDict):
    object: Literal["page"]
    has_more: bool
    next_page: str | None


class UsagePage(SpanPage):
    data: list[UsageBucketReply]


class CostPage(SpanPage):
    data: list[CostBucketReply]
