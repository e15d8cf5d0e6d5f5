"""Body and reply of `/v1/batches`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field
from typing_extensions import TypedDict

from quicksilver.server.http.fields import WHOLE, FreeObject, Metadata, Wire

MAX_LINES = 50_000

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
ENDPOINTS: tuple[str, ...] = get_args(Endpoint)
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class OutputExpiry(Wire):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000), WHOLE]


class BatchBody(Wire):
    input_file_id: Annotated[str, Field(max_length=256)]
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


class BatchLine(Wire):
    """One line of an input file."""

    custom_id: Annotated[str, Field(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: FreeObject


class RequestCounts(TypedDict):
    total: int
    completed: int
    failed: int


class BatchReply(TypedDict):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
