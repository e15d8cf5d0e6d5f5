"""Bodies and replies of `/v1/responses`: text, function tools and custom tools.

Hosted tools are accepted and skipped with a warning, and so are the items that they left in a conversation.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
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
    FunctionSpec,
    GenerationBody,
    Metadata,
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
    namespace: FunctionName | None = None
    arguments: str


class CallOutputItem(Wire):
    type: Literal["function_call_output"]
    call_id: ItemId
    output: Content


class CustomCallItem(Wire):
    type: Literal["custom_tool_call"]
    call_id: ItemId
    name: FunctionName
    input: str


class CustomOutputItem(Wire):
    type: Literal["custom_tool_call_output"]
    call_id: ItemId
    output: Content


class CompactionItem(Wire):
    """The summary that `/v1/responses/compact` made of earlier items."""

    type: Literal["compaction", "compaction_summary"]
    encrypted_content: str


class ReferenceItem(Wire):
    """A stored item by its id. One of the conversation so far is part of the prompt already."""

    type: Literal["item_reference"]
    id: ItemId


SKIPPED_ITEMS = (
    "reasoning",
    "web_search_call",
    "file_search_call",
    "computer_call",
    "computer_call_output",
    "image_generation_call",
    "code_interpreter_call",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "tool_search_call",
    "tool_search_output",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
)


class SkippedItem(Wire):
    """Reasoning of an earlier reply, or an item of a hosted tool; it is not part of the prompt."""

    type: Annotated[
        str,
        AfterValidator(lambda kind: one_of(kind, SKIPPED_ITEMS)),
        WithJsonSchema({"type": "string", "enum": list(SKIPPED_ITEMS)}),
    ]


def one_of(kind: str, kinds: tuple[str, ...]) -> str:
    if kind not in kinds:
        raise ValueError("no item of this type can be read here")
    return kind


ITEM_TAGS = {"compaction_summary": "compaction"} | {
    kind: kind
    for kind in (
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "compaction",
        "item_reference",
    )
}


def item_tag(item: Any) -> str:
    """The kind of an item by its type, so that its errors are those of its kind. A message may have no type."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return "message" if kind is None else ITEM_TAGS.get(kind, "skipped") if isinstance(kind, str) else "skipped"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CustomOutputItem, Tag("custom_tool_call_output")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ReferenceItem, Tag("item_reference")]
    | Annotated[SkippedItem, Tag("skipped")],
    Discriminator(item_tag),
]
Items = Annotated[list[InputItem], Field(max_length=MAX_MESSAGES)]


class FunctionToolItem(FunctionSpec):
    type: Literal["function"]


class GrammarInput(Wire):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=262_144)]


class TextInput(Wire):
    type: Literal["text"]


class CustomToolItem(Wire):
    """A tool whose input is text, which may have to follow a grammar."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] | None = None


class NamespaceItem(Wire):
    """Function tools whose calls carry the name of the group."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = None
    tools: Annotated[list[FunctionToolItem], Field(max_length=MAX_TOOLS)]


OWN_TOOLS = ("function", "custom", "namespace")


def hosted_type(kind: str) -> str:
    if kind in OWN_TOOLS:
        raise ValueError(f"this is no valid tool of the type {kind}")
    return kind


class HostedToolItem(Wire):
    """A tool that OpenAI's servers run; it is skipped with a warning."""

    type: Annotated[
        str,
        Field(max_length=64),
        AfterValidator(hosted_type),
        WithJsonSchema({"type": "string", "maxLength": 64, "not": {"enum": list(OWN_TOOLS)}}),
    ]


ToolItem = FunctionToolItem | CustomToolItem | NamespaceItem | HostedToolItem


class NamedToolItem(Wire):
    type: Literal["function", "custom"]
    name: FunctionName


class AllowedToolItems(Wire):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolItem | HostedToolItem], Field(max_length=MAX_TOOLS)]


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


class ConversationRef(Wire):
    id: ItemId


class CompactBody(GenerationBody):
    stream: Off | None = None
    stream_options: StreamOptions | None = None
    # The items that follow those of `previous_response_id` or `conversation`.
    input: str | Items | None = None
    instructions: str | None = None
    previous_response_id: ItemId | None = None

    @property
    def conversation_id(self) -> str | None:
        return None


def no_template(value: Any) -> Any:
    if value is not None:
        raise ValueError("hosted templates are not supported here: send the text as instructions and input")
    return value


class ResponsesBody(CompactBody):
    max_output_tokens: OutputTokens | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    seed: Seed | None = None
    stream: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: Annotated[list[ToolItem], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "required", "none"] | NamedToolItem | AllowedToolItems | HostedToolItem | None = None
    parallel_tool_calls: bool | None = None
    decoder: DecoderBody | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Metadata | None = None
    # Stored unless it is false, as with OpenAI.
    store: bool | None = None
    background: bool | None = None
    conversation: ItemId | ConversationRef | None = None
    prompt: Annotated[None, BeforeValidator(no_template)] = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation


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
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    conversation: dict[str, str] | None
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    max_output_tokens: int | None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None
    # Null if nothing was skipped or lowered.
    warning: str | None


class InputTokensReply(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class CompactionReply(TypedDict):
    """Items that replace a conversation: the messages of the user, and a summary of all the rest."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage
