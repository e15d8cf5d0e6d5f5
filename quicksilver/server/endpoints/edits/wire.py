"""Bodies of `/v1/edit/completions` and `/v1/apply/completions`; the replies are chat completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quicksilver.server.endpoints.chat.wire import ChatMessage
from quicksilver.server.http.fields import (
    WHOLE,
    Content,
    DecoderBody,
    GenerationBody,
    Penalty,
    Probability,
    Seed,
    StreamOptions,
    Temperature,
    Wire,
)

MAX_EDIT_TOKENS = 8192
MAX_APPLY_TOKENS = 65_536
EDIT_TOKENS = 1024


class EditMessage(Wire):
    role: Literal["user"]
    content: Content


class EditBody(GenerationBody):
    messages: Annotated[list[EditMessage], Field(min_length=1, max_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_EDIT_TOKENS), WHOLE] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    decoder: DecoderBody | None = None


class ApplyBody(GenerationBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=16)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_APPLY_TOKENS), WHOLE] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    decoder: DecoderBody | None = None
