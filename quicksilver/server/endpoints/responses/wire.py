"""Body and reply of `/v1/responses`: text and function tools; nothing is stored between requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from quicksilver.server.http.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    WHOLE,
    Content,
    DecoderBody,
    Effort,
    FreeObject,
    FunctionName,
    GenerationBody,
    Metadata,
    Name,
    Off,
    OutputTokens,
    Probability,
    Seed,
    StreamOptions,
    Temperature,
    Wire,
)

ItemId = Annotated[str, Field(max_length=256)]


class MessageItem(Wire):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class CallItem(Wire):
    type: Literal["function_call"]
    call_id: ItemId
    name: FunctionName
    arguments: str


class CallOutputItem(Wire):
    type: Literal["function_call_output"]
    call_id: ItemId
    output: Content


class ReasoningItem(Wire):
    """Reasoning of an earlier reply; it is not part of the prompt."""

    type: Literal["reasoning"]


InputItem = CallItem | CallOutputItem | ReasoningItem | MessageItem


class FunctionToolItem(Wire):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None


class NamedToolItem(Wire):
    type: Literal["function"]
    name: FunctionName


class AllowedToolItems(Wire):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolItem], Field(max_length=MAX_TOOLS)]


class PlainTextFormat(Wire):
    type: Literal["text"]


class JsonObjectTextFormat(Wire):
    type: Literal["json_object"]


class JsonSchemaTextFormat(Wire):
    type: Literal["json_schema"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[FreeObject, Field(alias="schema")]
    strict: bool | None = None


class TextConfig(Wire):
    format: (
        Annotated[PlainTextFormat | JsonObjectTextFormat | JsonSchemaTextFormat, Field(discriminator="type")] | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Wire):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesBody(GenerationBody):
    model: Name
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: OutputTokens | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: Annotated[list[FunctionToolItem], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "required", "none"] | NamedToolItem | AllowedToolItems | None = None
    parallel_tool_calls: bool | None = None
    decoder: DecoderBody | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Metadata | None = None
    store: Off | None = None
    background: Off | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    truncation: Literal["disabled"] | None = None


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseReply(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    max_output_tokens: int | None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
