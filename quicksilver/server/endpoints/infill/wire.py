"""Body and replies of llama.cpp's `/infill`."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from quicksilver.server.http.fields import (
    WHOLE,
    CodeStop,
    GenerationBody,
    OptionalText,
    Penalty,
    Probability,
    RepetitionPenalty,
    Seed,
    StreamOptions,
    Temperature,
    TopK,
    Wire,
)

MAX_PREDICT = 8192


class ExtraFile(Wire):
    """Other code that helps to fill the gap."""

    filename: OptionalText = ""
    text: str


class InfillBody(GenerationBody):
    """The gap is after `input_prefix` and `prompt`, which is the line before the cursor."""

    input_prefix: OptionalText = ""
    input_suffix: OptionalText = ""
    prompt: str | None = None
    input_extra: Annotated[list[ExtraFile], Field(max_length=64)] | None = None
    n_predict: Annotated[int, Field(ge=-1, le=MAX_PREDICT), WHOLE] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: CodeStop | None = None
    stream: bool | None = None
    # Names of reply fields, with `/` before the name of a field inside another; others are left out.
    response_fields: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=64)] | None = None

    @property
    def stream_options(self) -> StreamOptions | None:
        return None


class InfillTimings(TypedDict):
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    cache_n: int


class InfillReply(TypedDict, total=False):
    index: int
    content: str
    model: str
    stop: bool
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    timings: InfillTimings


class InfillChunk(TypedDict):
    index: int
    content: str
    stop: bool
    timings: NotRequired[InfillTimings]
