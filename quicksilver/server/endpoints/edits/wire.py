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
    min_logprob: Annotated[float, Field(le=0, allow_inf_nan=False)] | None = Field(
        default=None, description="The region is returned unchanged if the log-probability of the edit is below this."
    )
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
