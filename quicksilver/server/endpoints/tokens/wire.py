"""Bodies and replies of `/v1/tokenize` and `/v1/detokenize`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from quicksilver.server.endpoints.chat.wire import ChatMessage
from quicksilver.server.endpoints.completions.wire import TokenIds
from quicksilver.server.http.fields import MAX_MESSAGES, MAX_TOOLS, Effort, Name, ToolSpec, Wire


class TokenizeBody(Wire):
    """Either `prompt`, encoded as plain text, or `messages`, rendered by the chat template."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}}},
            ]
        }
    )

    model: Name
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[ToolSpec], Field(max_length=MAX_TOOLS)] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None


class TokenizeReply(TypedDict):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeBody(Wire):
    model: Name
    tokens: TokenIds


class DetokenizeReply(TypedDict):
    prompt: str
