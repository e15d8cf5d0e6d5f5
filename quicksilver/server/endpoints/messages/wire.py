"""Bodies and replies of `/v1/messages`: text, thinking and tools in Anthropic's content blocks.

`cache_control`, `metadata`, `service_tier`, `context_management` and other fields that change no answer are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from quicksilver.server.http.fields import (
    MAX_CODE_STOPS,
    MAX_MESSAGES,
    MAX_TOOLS,
    WHOLE,
    CallArguments,
    DecoderBody,
    FreeObject,
    GenerationBody,
    OutputTokens,
    Probability,
    Seed,
    StopText,
    StreamOptions,
    TopK,
    Wire,
)

MAX_BLOCKS = 512
MAX_BUDGET_TOKENS = 1_000_000

MessageToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
BlockId = Annotated[str, Field(max_length=256)]


class TextBlock(Wire):
    type: Literal["text"]
    text: str


class ThinkingBlock(Wire):
    """Thinking of an earlier reply. Its signature must be the one that this server made for it."""

    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, Field(max_length=4096)]


class RedactedThinkingBlock(Wire):
    """Thinking that cannot be read; it is not part of the prompt."""

    type: Literal["redacted_thinking"]


SkippedType = Literal[
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
]


class SkippedBlock(Wire):
    """A call of a tool that Anthropic's servers ran, or its result; it is not part of the prompt."""

    type: SkippedType


class ToolUseBlock(Wire):
    type: Literal["tool_use"]
    id: BlockId
    name: MessageToolName
    input: CallArguments


class TextSource(Wire):
    type: Literal["text"]
    data: str

    @property
    def text(self) -> str:
        return self.data


class ContentSource(Wire):
    type: Literal["content"]
    content: str | Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "\n".join(block.text for block in self.content)


class DocumentBlock(Wire):
    """A document that is given as text."""

    type: Literal["document"]
    source: Annotated[TextSource | ContentSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Wire):
    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS)]


class ToolReferenceBlock(Wire):
    type: Literal["tool_reference"]
    tool_name: str


ResultBlock = Annotated[TextBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock, Field(discriminator="type")]


class ToolResultBlock(Wire):
    type: Literal["tool_result"]
    tool_use_id: BlockId
    content: str | Annotated[list[ResultBlock], Field(max_length=MAX_BLOCKS)] | None = None
    is_error: bool | None = None


Block = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | DocumentBlock
    | SearchResultBlock
    | SkippedBlock,
    Field(discriminator="type"),
]


class MessageTurn(Wire):
    # A system message may be anywhere in the conversation.
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(max_length=MAX_BLOCKS)]


class MessageTool(Wire):
    """A tool of the caller. One with another type than `custom` is run by Anthropic's servers, or has a schema that
    only their models are trained on; it is skipped with a warning."""

    type: Annotated[str, Field(max_length=64)] | None = None
    # A set of tools of a server has none.
    name: MessageToolName | None = None
    description: str | None = None
    input_schema: FreeObject | None = None
    strict: bool | None = None

    @property
    def is_custom(self) -> bool:
        return self.type in (None, "custom")

    @model_validator(mode="after")
    def _has_name(self) -> Self:
        if self.is_custom and self.name is None:
            raise ValueError("a tool of the caller needs a name")
        return self


class MessageToolChoice(Wire):
    type: Literal["auto", "any", "tool", "none"]
    name: MessageToolName | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Wire):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_BUDGET_TOKENS), WHOLE] | None = None
    # `omitted` leaves the text of thinking blocks empty. Clients send other words too, which have no effect.
    display: Annotated[str, Field(max_length=64)] | None = None


class OutputFormat(Wire):
    type: Literal["json_schema"]
    schema_: Annotated[FreeObject, Field(alias="schema")]


class OutputConfig(Wire):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensBody(GenerationBody):
    messages: Annotated[list[MessageTurn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS)] | None = None
    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    # The name of `output_config.format` in earlier versions.
    output_format: OutputFormat | None = None


class MessagesBody(CountTokensBody):
    max_tokens: OutputTokens
    temperature: Probability | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MAX_CODE_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Extensions.
    seed: Seed | None = None
    decoder: DecoderBody | None = None


class CountTokensReply(TypedDict):
    input_tokens: int


class OutputTokensDetails(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    """`input_tokens` does not include the tokens that were read from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageObject(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    warning: NotRequired[str]


class MessageEvent(TypedDict):
    """One event of a stream; the other keys depend on the type."""

    type: str
