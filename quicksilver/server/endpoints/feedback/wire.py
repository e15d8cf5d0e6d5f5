"""Body and reply of `/feedback`: whether a suggestion was accepted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from quicksilver.server.http.fields import Wire


class FeedbackBody(Wire):
    # The `id` of the reply that held the suggestion.
    request_id: Annotated[str, Field(min_length=1, max_length=128)]
    user_action: Literal["accept", "reject", "ignore"]
    provider_name: Annotated[str, Field(max_length=64)] | None = None
    provider_version: Annotated[str, Field(max_length=64)] | None = None


class FeedbackReply(TypedDict):
    stored: bool
