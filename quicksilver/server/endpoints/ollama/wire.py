"""Bodies and replies of Ollama's API. A body without `stream` is streamed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import TypedDict

from quicksilver.server.http.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    WHOLE,
    CallArguments,
    CodeStop,
    FreeObject,
    FunctionName,
    GenerationBody,
    ModelBody,
    ModelName,
    OptionalText,
    Penalty,
    Probability,
    RepetitionPenalty,
    Seed,
    StreamOptions,
    Temperature,
    ToolSpec,
    TopK,
    Wire,
)

MAX_PREDICT = 1_000_000


def without_tag(name: Any) -> Any:
    """Clients of Ollama complete names with a tag; `latest` means none."""
    return "" if name is None else name.removesuffix(":latest") if isinstance(name, str) else name


TaggedName = Annotated[ModelName, BeforeValidator(without_tag, json_schema_input_type=ModelName | None)]


def neutral(*values: object) -> AfterValidator:
    """Refuses every value but these, which leave the answer as it is."""

    def check(value: Any) -> Any:
        if value not in values:
            raise ValueError("cannot be honoured here: leave this field out")
        return value

    return AfterValidator(check)


def unsupported(advice: str) -> BeforeValidator:
    """Refuses a list with entries, with this advice."""

    def check(value: Any) -> Any:
        if value:
            raise ValueError(advice)
        return value

    return BeforeValidator(check)


NoImages = Annotated[list[str], Field(max_length=0), unsupported("only text is supported here: leave the images out")]
NoContext = Annotated[
    list[int], Field(max_length=0), unsupported("tokens are not kept here: send the text with /api/chat")
]


class OllamaOptions(Wire):
    """Options that change the answer; options of the loader are ignored."""

    num_predict: Annotated[int, Field(ge=-2, le=MAX_PREDICT), WHOLE] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    seed: Seed | None = None
    stop: CodeStop | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    mirostat: Annotated[float, neutral(0)] | None = None
    typical_p: Annotated[float, neutral(1)] | None = None
    tfs_z: Annotated[float, neutral(1)] | None = None

    @property
    def is_unlimited(self) -> bool:
        """-1 and -2 ask for an answer of any length."""
        return self.num_predict is not None and self.num_predict < 0


NEUTRAL_OPTIONS = ("mirostat", "typical_p", "tfs_z")


class OllamaBody(GenerationBody):
    model: TaggedName = ""
    options: OllamaOptions | None = None
    # `json`, or a JSON schema.
    format: Literal["", "json"] | FreeObject | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    stream_: Annotated[bool | None, Field(alias="stream")] = None
    keep_alive: float | str | None = None

    @property
    def stream(self) -> bool | None:
        return self.stream_ is not False

    @property
    def stream_options(self) -> StreamOptions | None:
        return None


class OllamaCalled(Wire):
    name: FunctionName
    arguments: CallArguments | None = None


class OllamaCall(Wire):
    function: OllamaCalled


class OllamaMessage(Wire):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_name: Annotated[str, Field(max_length=256)] | None = None
    images: NoImages | None = None


class OllamaChatBody(OllamaBody):
    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[ToolSpec], Field(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateBody(OllamaBody):
    prompt: OptionalText = ""
    # Clients send an empty one where there is no gap.
    suffix: Annotated[str | None, BeforeValidator(lambda value: None if value == "" else value)] = None
    system: str | None = None
    # The prompt is continued as it is, without a chat template.
    raw_: Annotated[bool | None, Field(alias="raw")] = None
    # A template or the tokens of an earlier reply, which cannot be honoured.
    template: Annotated[str, neutral("")] | None = None
    context: NoContext | None = None
    images: NoImages | None = None


class ShowBody(ModelBody):
    model: TaggedName = ""
    # The older name of `model`.
    name: TaggedName = ""


class OllamaFunctionReply(TypedDict):
    name: str
    arguments: dict[str, Any]


class OllamaCallReply(TypedDict):
    function: OllamaFunctionReply


class OllamaMessageReply(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCallReply]]


class OllamaTokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: NotRequired[list[Any]]


class OllamaReply(TypedDict):
    """One line of a stream, or the whole reply. Counts and durations (ns) come with the last line."""

    model: str
    created_at: str
    done: bool
    message: NotRequired[OllamaMessageReply]
    response: NotRequired[str]
    thinking: NotRequired[str]
    logprobs: NotRequired[list[OllamaTokenLogprob]]
    done_reason: NotRequired[Literal["stop", "length", "load"]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModelList(TypedDict):
    models: list[OllamaModel]


class OllamaRunning(OllamaModel):
    expires_at: str
    # Bytes in the memory of a GPU.
    size_vram: int
    context_length: int


class OllamaRunningList(TypedDict):
    models: list[OllamaRunning]


class OllamaShown(TypedDict):
    modelfile: str
    parameters: str
    template: str
    modified_at: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaVersion(TypedDict):
    version: str


class OllamaError(TypedDict):
    error: str
