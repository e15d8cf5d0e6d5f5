"""Bodies and replies of `/v1/decisions` (OpenAI) and `/v1/systemone` (TypeSafe)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictStr
from typing_extensions import TypedDict

from quicksilver.server.http.fields import (
    FreeObject,
    GenerationBody,
    Off,
    OptionalText,
    StreamOptions,
    Wire,
    at_most,
    tame,
)

MAX_QUESTIONS = 400
MAX_OPTIONS = 255
MAX_ITEMS = 2048
MAX_INSTRUCTION_CHARS = 20_000
MAX_LABEL_CHARS = 1024


class InputText(Wire):
    type: Literal["input_text", "output_text", "text"]
    text: str


class InputJson(Wire):
    type: Literal["input_json", "json"]
    json_: Annotated[Any, Field(alias="json"), AfterValidator(tame)] = None
    value: Annotated[Any, AfterValidator(tame)] = None


class InputRefusal(Wire):
    type: Literal["refusal"]
    refusal: str


InputPart = Annotated[InputText | InputJson | InputRefusal, Field(discriminator="type")]
InputContent = str | Annotated[list[InputPart], Field(max_length=64)]


class InputMessage(Wire):
    type: Literal["message"] | None = None
    role: Literal["user", "developer", "system", "assistant"]
    content: InputContent


class InputCall(Wire):
    type: Literal["function_call", "custom_tool_call"]
    call_id: str
    name: str
    arguments: OptionalText = ""
    input: OptionalText = ""


class InputCallOutput(Wire):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: InputContent


InputItem = InputMessage | InputCall | InputCallOutput
Instructions = (
    Annotated[str, Field(min_length=1, max_length=MAX_INSTRUCTION_CHARS)]
    | Annotated[list[InputPart], Field(min_length=1, max_length=64)]
)
Description = Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARS)]
QuestionName = Annotated[str, Field(max_length=256)]
OptionLabel = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]


class PredicateQuestion(Wire):
    type: Literal["predicate"]
    instructions: Instructions
    name: QuestionName | None = None


class ChoiceOption(Wire):
    value: Annotated[StrictStr, Field(max_length=MAX_LABEL_CHARS)] | StrictBool
    description: Description | None = None


class ChoiceQuestion(Wire):
    type: Literal["choice"]
    instructions: Instructions
    choices: Annotated[list[ChoiceOption], Field(min_length=2, max_length=MAX_OPTIONS)]
    name: QuestionName | None = None


class ScoreLevel(Wire):
    label: OptionLabel
    description: Description | None = None


class ScoreQuestion(Wire):
    type: Literal["score"]
    instructions: Instructions
    levels: Annotated[list[ScoreLevel], Field(min_length=2, max_length=MAX_OPTIONS)]
    name: QuestionName | None = None


TypedQuestion = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecidingBody(GenerationBody):
    """Answers are probabilities of the whole input, so there is nothing to stream."""

    stream: Off | None = None
    stream_options: StreamOptions | None = None


class DecisionBody(DecidingBody):
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_ITEMS)]
    questions: Annotated[list[TypedQuestion], Field(min_length=1, max_length=MAX_QUESTIONS)]
    prompt_cache_key: str | None = None
    prompt_cache_options: FreeObject | None = None
    safety_identifier: str | None = None


FreeContent = Annotated[str | dict[str, Any] | list[Any], AfterValidator(tame)]


class NoulCriteria(Wire):
    true: FreeContent | None = None
    false: FreeContent | None = None


class NoulQuestion(Wire):
    type: Literal["noul"]
    instructions: FreeContent | None = None
    criteria: NoulCriteria | None = None


class NamedChoiceQuestion(Wire):
    type: Literal["choice"]
    instructions: FreeContent | None = None
    criteria: Annotated[
        dict[OptionLabel, FreeContent | None], Field(min_length=1, max_length=MAX_OPTIONS), at_most(MAX_OPTIONS)
    ]


class RubricQuestion(Wire):
    type: Literal["score"]
    instructions: FreeContent | None = None
    criteria: Annotated[list[FreeContent], Field(min_length=1, max_length=MAX_OPTIONS)]


NamedQuestion = Annotated[NoulQuestion | NamedChoiceQuestion | RubricQuestion, Field(discriminator="type")]


class SystemOneBody(DecidingBody):
    state: FreeContent
    questions: Annotated[
        dict[QuestionName, NamedQuestion], Field(min_length=1, max_length=MAX_QUESTIONS), at_most(MAX_QUESTIONS)
    ]


class PredicateAnswer(TypedDict):
    type: Literal["predicate"]
    name: str | None
    probability: float


class OptionProbability(TypedDict):
    value: str | bool
    probability: float


class ChoiceAnswer(TypedDict):
    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[OptionProbability]


class LevelProbability(TypedDict):
    value: int
    label: str
    probability: float


class ScoreAnswer(TypedDict):
    type: Literal["score"]
    name: str | None
    # The mean level; levels count from 0.
    score: float
    confidence: float
    probabilities: list[LevelProbability]


class DecisionInputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class DecisionOutputDetails(TypedDict):
    reasoning_tokens: int


class DecisionUsage(TypedDict):
    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class DecisionReply(TypedDict):
    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionUsage


class NoulAnswer(TypedDict):
    type: Literal["noul"]
    noul: float


class NamedChoiceAnswer(TypedDict):
    type: Literal["choice"]
    choice: str
    confidence: float
    probabilities: dict[str, float]


class RubricAnswer(TypedDict):
    type: Literal["score"]
    score: float
    confidence: float
    legend: dict[str, Any]
    probabilities: dict[str, float]


class SystemOneReply(TypedDict):
    model: str
    answers: dict[str, NoulAnswer | NamedChoiceAnswer | RubricAnswer]
    usage: DecisionUsage
