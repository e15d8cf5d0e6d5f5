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
    OptionalText,
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

# Most characters of one hole and of one fixed part of a template.
MAX_HOLE_CHARS, MAX_FIXED_CHARS = 1000, 4000


class CalledFunction(Wire):
    name: FunctionName
    arguments: OptionalText = ""


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


class TemplateOptions(OwnWire):
    """vLLM's options of the chat template. The only one that is known turns reasoning on or off."""

    enable_thinking: bool | None = None


class ChatBody(GenerationBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="The conversation, oldest message first."
    )
    max_tokens: AnyOutputTokens | None = Field(
        default=None, description="Longest answer, in tokens. Default: what the context has left, at most 8,192."
    )
    max_completion_tokens: AnyOutputTokens | None = Field(
        default=None, description="OpenAI's newer name of `max_tokens`; it takes precedence."
    )
    temperature: Temperature | None = Field(default=None, description="0 is greedy. Default: 0.75.")
    top_p: Probability | None = Field(
        default=None,
        description="Keep the likeliest tokens whose probabilities add up to this. Default: 1, all tokens.",
    )
    top_k: TopK | None = Field(default=None, description="Keep this many of the likeliest tokens. Default: all.")
    min_p: Probability | None = Field(
        default=None, description="Drop tokens less likely than this share of the likeliest one. Default: 0."
    )
    frequency_penalty: Penalty | None = Field(
        default=None, description="Subtracted from a token's logit for each time it occurs in the answer. Default: 0."
    )
    presence_penalty: Penalty | None = Field(
        default=None, description="Subtracted from the logit of a token that occurs in the answer. Default: 0."
    )
    repetition_penalty: RepetitionPenalty | None = Field(
        default=None, description="Makes tokens of prompt and answer less likely. Default: 1, no effect."
    )
    seed: Seed | None = Field(
        default=None,
        description="The same seed gives the same tokens on the same `system_fingerprint`. Default: random.",
    )
    stop: Stop | None = Field(default=None, description="Strings that end the answer; they are not part of it.")
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS), WHOLE] | None = Field(
        default=None, description="Number of answers. Default: 1."
    )
    logprobs: bool | None = Field(default=None, description="Return the log-probability of every token.")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = Field(
        default=None, description="Alternatives per token; needs `logprobs`."
    )
    logit_bias: LogitBias | None = Field(
        default=None, description="Added to the logits: token id in decimal -> number."
    )
    prediction: PredictionBody | None = Field(
        default=None, description="Text that most of the answer is expected to repeat. It is used as a draft."
    )
    prompt_logprobs: PromptLogprobs | None = Field(
        default=None, description="vLLM: log-probabilities of the prompt's tokens, with this many alternatives."
    )
    ignore_eos: bool | None = Field(
        default=None, description="vLLM: the answer continues after the model's end token, up to `max_tokens`."
    )
    min_tokens: MinTokens | None = Field(
        default=None, description="vLLM: no token may end the answer before it has this many tokens."
    )
    stream: bool | None = Field(default=None, description="Send the answer in chunks, as server-sent events.")
    stream_options: StreamOptions | None = Field(default=None, description="Options of a stream.")
    diffusing: bool | None = Field(
        default=None, description="In a stream: send the whole text with its drafts after each step."
    )
    diffusion_detail: Literal["summary", "tokens"] | None = Field(
        default=None, description="With `diffusing`: counts of each step, or also its tokens."
    )
    realtime: bool | None = Field(
        default=None, description="Use shorter canvases, so that the first token comes sooner."
    )
    reasoning_effort: Effort | None = Field(
        default=None, description="How long the model may reason before it answers. Default: none."
    )
    chat_template_kwargs: TemplateOptions | None = Field(
        default=None, description="vLLM: `enable_thinking` stands for the effort `medium` or `none`, if none is given."
    )
    reasoning_summary: bool | None = Field(default=None, description="Return the first part of the reasoning.")
    reasoning_summary_wait: bool | None = Field(default=None, description="Accepted, without effect.")
    tools: Annotated[list[ToolSpec], Field(max_length=MAX_TOOLS)] | None = Field(
        default=None, description="Functions that the model may call. Every call satisfies the schema of its function."
    )
    tool_choice: ToolChoice | None = Field(
        default=None,
        description="Whether the model may, must or must not call a function, or which one. Default: auto.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether an answer may have several calls. Default: true."
    )
    response_format: ResponseFormat | None = Field(
        default=None, description="Form of the answer, enforced while it is decoded. Default: text."
    )
    choice: Annotated[list[Label], Field(min_length=1, max_length=MAX_CHOICES)] | None = Field(
        default=None, description="Labels. The answer is the likeliest of them."
    )
    decoder: DecoderBody | None = Field(
        default=None, description="The decoder and its parameters, or the decoder's name. Default: that of the model."
    )
    user: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Name of the end user, without effect."
    )
    metadata: Metadata | None = Field(default=None, description="Stored with the answer if `store` is true.")
    store: bool | None = Field(default=None, description="Store the answer for later retrieval. Default: false.")
    modalities: list[Literal["text"]] | None = Field(default=None, description="Only text is supported.")


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
