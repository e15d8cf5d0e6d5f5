"""The shapes of a refusal: OpenAI's, and Anthropic's below `/v1/messages`."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(TypedDict):
    error: ErrorDetail


class AnthropicErrorDetail(TypedDict):
    type: str
    message: str


class AnthropicErrorReply(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorDetail
    # Not inside a stream.
    request_id: NotRequired[str]
