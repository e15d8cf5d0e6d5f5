"""Bodies and replies of `/v1/fim/completions` and `/v1/completions`, whose replies have the same form."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from quicksilver.server.generation.prompt_scores import PromptLogprobsReply
from quicksilver.server.generation.usage import ReplyMetrics, UsageReply
from quicksilver.server.http.fields import (
    MAX_ANSWERS,
    MAX_PROMPTS,
    MAX_SAFE_INT,
    MAX_STOP_IDS,
    WHOLE,
    AnyOutputTokens,
    CodeStop,
    DecoderBody,
    GenerationBody,
    LogitBias,
    MinTokens,
    Penalty,
    PredictionBody,
    Probability,
    PromptLogprobs,
    RepetitionPenalty,
    Seed,
    StreamOptions,
    Temperature,
    TopK,
)

MAX_FIM_TOKENS = 8192
# By default a completion ends at the first blank line.
FIM_STOP = ("\n\n", "\n \n")
FIM_TOKENS = 512


class FimBody(GenerationBody):
    prompt: str
    suffix: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_FIM_TOKENS), WHOLE] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    stop: CodeStop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    realtime: bool | None = None
    decoder: DecoderBody | None = None


TokenId = Annotated[int, Field(ge=0, le=MAX_SAFE_INT), WHOLE]
TokenIds = Annotated[list[TokenId], Field(max_length=1_000_000)]
StopIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS)]


class CompletionBody(GenerationBody):
    """With `suffix` this is a fill-in-the-middle request."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    suffix: str | None = None
    max_tokens: AnyOutputTokens | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    stop: CodeStop | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS), WHOLE] | None = None
    # Answers to generate, of which the `n` with the highest mean log-probability are returned; 0 is `n`.
    best_of: Annotated[int, Field(ge=0, le=MAX_ANSWERS), WHOLE] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5), WHOLE] | None = None
    logit_bias: LogitBias | None = None
    prediction: PredictionBody | None = None
    # vLLM: log-probabilities of the prompt's tokens, with this many alternatives.
    prompt_logprobs: PromptLogprobs | None = None
    # vLLM: the answer continues after the model's end token, up to `max_tokens`.
    ignore_eos: bool | None = None
    # vLLM: no token may end the answer before it has this many tokens.
    min_tokens: MinTokens | None = None
    # vLLM: tokens that end the answer, besides the model's own.
    stop_token_ids: StopIds | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    realtime: bool | None = None
    decoder: DecoderBody | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    # Extension: ids in `prompt` may be special tokens, for prompts that the caller rendered with a template.
    allow_special_ids: bool | None = None
    # Extension: tokens that end the answer, instead of the model's own.
    stop_ids: StopIds | None = None
    # Extension: `off` reads a prompt in the template of a code model as plain text.
    template: Literal["auto", "off"] | None = None
    # Extension: the text that the answer must begin with, in any tokenisation. Not with `suffix`.
    lead: Annotated[str, Field(max_length=512)] | None = None
    # Extension: choices contain the answer's tokens, special ones included, as `token_ids`.
    return_token_ids: bool | None = None


class TextLogprobs(TypedDict):
    tokens: list[str]
    # Null for the first token of an echoed prompt.
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


FinishReply = Literal["stop", "length", "content_filter"]


class TextChoice(TypedDict):
    index: int
    text: str
    finish_reason: FinishReply
    logprobs: TextLogprobs | None
    token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobsReply]


class TextCompletion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageReply
    warning: str | None
    system_fingerprint: str
    metrics: NotRequired[ReplyMetrics]


class TextChunkChoice(TypedDict):
    index: int
    text: str
    finish_reason: FinishReply | None
    logprobs: TextLogprobs | None
    token_ids: NotRequired[list[int]]


class TextChunk(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChunkChoice]
    system_fingerprint: str
    usage: NotRequired[UsageReply | None]
    # Only in the chunk of the whole usage.
    metrics: NotRequired[ReplyMetrics]
    # Only in the first chunk, and only if there is one.
    warning: NotRequired[str]
