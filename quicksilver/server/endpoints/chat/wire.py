"""Body and replies of `/v1/chat/completions`; edit and apply use the same replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from quicksilver.server.generation.prompt_scores import PromptLogprobsReply
from quicksilver.server.generation.usage import ReplyMetrics, UsageReply
from quicksilver.server.http.fields import (
    MAX_ANSWERS,
    MAX_CHOICE_CHARS,
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    WHOLE,
    AnyOutputTokens,
    Content,
    DecoderBody,
    Effort,
    FreeObject,
    FunctionName,
    GenerationBody,
    LogitBias,
    Metadata,
    MinTokens,
    NamedTool,
    OwnWire,
    Penalty,
    PredictionBody,
    Probability,
    PromptLogprobs,
    RepetitionPenalty,
    Seed,
    SpeakerName,
    Stop,
    StreamOptions,
    Temperature,
    ToolSpec,
    TopK,
    Wire,
)

# Of a template: characters of one hole, and of one fixed part.
MAX_HOLE_CHARS, MAX_FIXED_CHARS = 1000, 4000


class CalledFunction(Wire):
    name: FunctionName
    arguments: str = ""


class CalledTool(Wire):
    id: Annotated[str, Field(max_length=256)] | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class ChatMessage(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    # The reasoning of an earlier reply, sent back in a tool loop.
    reasoning_content: str | None = None
    name: SpeakerName | None = None
    tool_calls: Annotated[list[CalledTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None


class AllowedTools(Wire):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(max_length=MAX_TOOLS)]


class AllowedToolChoice(Wire):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["auto", "required", "none"] | NamedTool | AllowedToolChoice


class SchemaFormat(Wire):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[FreeObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(Wire):
    type: Literal["text"]


class JsonObjectFormat(Wire):
    type: Literal["json_object"]


class JsonSchemaFormat(Wire):
    type: Literal["json_schema"]
    json_schema: SchemaFormat


class RegexFormat(OwnWire):
    """Extension: the whole answer matches a regular expression."""

    type: Literal["regex"]
    pattern: Annotated[str, Field(min_length=1, max_length=1024)]


class GrammarFormat(OwnWire):
    """Extension: the whole answer follows a Lark grammar."""

    type: Literal["grammar"]
    grammar: Annotated[str, Field(min_length=1, max_length=262_144)]


class HolePart(OwnWire):
    """A gap of a template."""

    type: Literal["hole"]
    min_chars: Annotated[int, Field(ge=0, le=MAX_HOLE_CHARS), WHOLE] = 1
    max_chars: Annotated[int, Field(ge=1, le=MAX_HOLE_CHARS), WHOLE] = 80
    multiline: bool = False


class TemplateFormat(OwnWire):
    """Extension: the answer is this text with its holes filled; strings are kept as they are."""

    type: Literal["template"]
    parts: Annotated[
        list[Annotated[str, Field(max_length=MAX_FIXED_CHARS)] | HolePart], Field(min_length=1, max_length=MAX_PARTS)
    ]


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat | TemplateFormat,
    Field(discriminator="type"),
]


Label = Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARS)]


class ChatBody(GenerationBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: AnyOutputTokens | None = None
    max_completion_tokens: AnyOutputTokens | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS), WHOLE] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    logit_bias: LogitBias | None = None
    prediction: PredictionBody | None = None
    # vLLM: log-probabilities of the prompt's tokens, with this many alternatives.
    prompt_logprobs: PromptLogprobs | None = None
    # vLLM: the answer continues after the model's end token, up to `max_tokens`.
    ignore_eos: bool | None = None
    # vLLM: no token may end the answer before it has this many tokens.
    min_tokens: MinTokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    diffusing: bool | None = None
    diffusion_detail: Literal["summary", "tokens"] | None = None
    realtime: bool | None = None
    reasoning_effort: Effort | None = None
    reasoning_summary: bool | None = None
    reasoning_summary_wait: bool | None = None
    tools: Annotated[list[ToolSpec], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    choice: Annotated[list[Label], Field(min_length=1, max_length=MAX_CHOICES)] | None = None
    decoder: DecoderBody | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Metadata | None = None
    # Stored only if it is true.
    store: bool | None = None
    modalities: list[Literal["text"]] | None = None


class FunctionReply(TypedDict):
    name: str
    arguments: str


class ToolCallReply(TypedDict):
    index: int
    id: str
    type: Literal["function"]
    function: FunctionReply


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobReply(TopLogprob):
    top_logprobs: list[TopLogprob]


class LogprobsReply(TypedDict):
    content: list[TokenLogprobReply]
    refusal: None


class MessageReply(TypedDict):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCallReply]
    tool_call_id: None
    refusal: NotRequired[None]
    reasoning_content: NotRequired[str]


FinishReply = Literal["stop", "length", "tool_calls", "content_filter"]


class ChatChoice(TypedDict):
    index: int
    message: MessageReply
    finish_reason: FinishReply
    logprobs: NotRequired[LogprobsReply | None]
    probabilities: NotRequired[dict[str, float]]


class ReasoningSummary(TypedDict):
    content: str | None
    status: Literal["complete", "unavailable", "skipped"]


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    warning: str | None
    reasoning_summary: ReasoningSummary | None
    system_fingerprint: NotRequired[str]
    prompt_logprobs: NotRequired[PromptLogprobsReply]
    metrics: NotRequired[ReplyMetrics]


# [text, "forced" | "committed" | "decided" | "masked", confidence or null] and, with `top_logprobs`, [[text, p]].
FrameToken = list[Any]


class FrameReply(TypedDict):
    """The canvas of one `diffusing` snapshot."""

    step: int
    committed: int
    decided: int
    masked: int
    confidence: float
    shown: NotRequired[int]
    tokens: NotRequired[list[FrameToken]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: dict[str, Any]
    finish_reason: FinishReply | None
    logprobs: NotRequired[LogprobsReply | None]
    probabilities: NotRequired[dict[str, float]]


class ChatChunk(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: NotRequired[str]
    reasoning_summary: NotRequired[ReasoningSummary | None]
    usage: NotRequired[UsageReply | None]
    # Only in the chunk of the whole usage.
    metrics: NotRequired[ReplyMetrics]
    quicksilver: NotRequired[FrameReply]
    # Only in the first chunk, and only if there is one.
    warning: NotRequired[str]
