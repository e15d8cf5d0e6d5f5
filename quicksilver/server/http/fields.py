"""Fields that several bodies share: the strict base model, numbers with their bounds, text parts, tools.

Every list and number of a request has an upper bound here, with a test at the bound and one beyond it.
Unknown fields are ignored, since clients send many, and a reply names those at the top level in `warning`. A known
field of the wrong type is refused, and so is an unknown field inside an object that only this server defines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

# Beyond it JSON parsers disagree on the value of an integer.
MAX_SAFE_INT = 2**53

MAX_MESSAGES = 2048
MAX_PARTS = 64
MAX_TOOLS = 128
MAX_STOPS = 4
# Editors send the stop strings of many templates at once.
MAX_CODE_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 64
MAX_ANSWERS = 8
MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_METADATA = 16
MAX_METADATA_CHARS = 512
MAX_CHOICES = 256
MAX_CHOICE_CHARS = 1024
MAX_OUTPUT_TOKENS = 1_000_000
MAX_PROMPTS = 32
MAX_JSON_NODES = 100_000
# Nesting of free JSON that is accepted; the grammar compiler has a tighter bound for schemas.
MAX_JSON_DEPTH = 64


class Wire(BaseModel):
    """A request body: strict types, unknown fields dropped."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class OwnWire(Wire):
    """An object that only this server defines: an unknown field is a typing error, and is refused."""

    model_config = ConfigDict(extra="forbid")


def absent(value: Any) -> Any:
    return "" if value is None else value


# Null is an empty text.
OptionalText = Annotated[str, BeforeValidator(absent, json_schema_input_type=str | None)]
ModelName = Annotated[str, Field(max_length=256)]


class ModelBody(Wire):
    """A body that names a model; an empty name and null select the default model."""

    model: Annotated[ModelName, BeforeValidator(absent, json_schema_input_type=ModelName | None)] = Field(
        default="", description="Name of a served model. Default: the first one."
    )


class GenerationBody(ModelBody):
    """The body of a request that generates; keeps the bytes that were sent, so that two requests can be compared."""

    _raw: bytes = PrivateAttr(b"")
    _ignored: tuple[str, ...] = PrivateAttr(())

    @property
    def raw(self) -> bytes:
        return self._raw

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of fields that were sent and that no field of this body reads."""
        return self._ignored

    def keep_source(self, raw: bytes, names: Iterable[str]) -> None:
        """Keep the bytes of the body and the names of its fields."""
        known = {field.alias or name for name, field in type(self).model_fields.items()}
        self._raw = raw
        self._ignored = tuple(name for name in names if name not in known)


def whole(value: Any) -> Any:
    """JSON has one number type, so 16.0 is the integer 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def tame(value: Any) -> Any:
    """Free JSON within bounds: few nodes, shallow, and no integer that another reader would round."""
    return bounded(value, max_int=MAX_SAFE_INT)


def bounded(value: Any, *, max_int: float = math.inf) -> Any:
    """Free JSON within bounds on its nodes, its depth and its integers."""
    stack, num_nodes = [(value, 1)], 0
    while stack:
        node, depth = stack.pop()
        num_nodes += 1
        if num_nodes > MAX_JSON_NODES or depth > MAX_JSON_DEPTH:
            raise ValueError(f"more than {MAX_JSON_NODES} values or nested deeper than {MAX_JSON_DEPTH}")
        if isinstance(node, int) and abs(node) > max_int:
            raise ValueError("holds an integer beyond 2^53")
        if isinstance(node, dict):
            stack += [(child, depth + 1) for child in node.values()]
        elif isinstance(node, list):
            stack += [(child, depth + 1) for child in node]
    return value


def at_most(num: int) -> BeforeValidator:
    """Refuses a large object before its entries are checked: pydantic would collect an error for each of them."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > num:
            raise ValueError(f"more than {num} entries")
        return value

    return BeforeValidator(check)


def refuse_true(value: bool) -> bool:
    if value:
        raise ValueError("cannot be honoured here, so it may only be false")
    return value


def choose_bias(value: dict[str, float]) -> dict[str, float]:
    if any(not (key.isascii() and key.isdigit() and len(key) <= 9) for key in value):
        raise ValueError("keys are token ids in decimal")
    return value


# The last annotation of every integer: bounds that came after it would be missing from the document.
WHOLE = BeforeValidator(whole)
# A switch of the OpenAI API that this server supports only as false.
Off = Annotated[bool, AfterValidator(refuse_true), WithJsonSchema({"type": "boolean", "const": False})]
Name = Annotated[str, Field(min_length=1, max_length=256)]
# Written into the head of a turn, which is one line.
SpeakerName = Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f\x85\u2028\u2029]*$")]
FreeObject = Annotated[dict[str, Any], AfterValidator(tame)]
# Arguments of a call that a model wrote: they come back as they are, and are only written into a prompt.
CallArguments = Annotated[dict[str, Any], AfterValidator(bounded)]
OutputTokens = Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS), WHOLE]
# 0 generates nothing: only the prompt is read.
AnyOutputTokens = Annotated[int, Field(ge=0, le=MAX_OUTPUT_TOKENS), WHOLE]
MinTokens = Annotated[int, Field(ge=0, le=MAX_OUTPUT_TOKENS), WHOLE]
PromptLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE]
Temperature = Annotated[float, Field(ge=0, le=2)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=10)]
TopK = Annotated[int, Field(ge=-1, le=1000), WHOLE]
Seed = Annotated[int, Field(ge=-MAX_SAFE_INT, le=MAX_SAFE_INT), WHOLE]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)]
CodeStop = StopText | Annotated[list[StopText], Field(max_length=MAX_CODE_STOPS)]
LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_LOGIT_BIAS, json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,9}$"}}),
    AfterValidator(choose_bias),
    at_most(MAX_LOGIT_BIAS),
]
MetadataText = Annotated[str, Field(max_length=MAX_METADATA_CHARS)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], MetadataText], Field(max_length=MAX_METADATA), at_most(MAX_METADATA)
]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Effort = Literal["none", "minimal", "instant", "low", "medium", "high", "xhigh"]


class StreamOptions(Wire):
    include_usage: bool | None = None
    # Together with `include_usage`: every chunk has the counts so far.
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


def text_kind(value: Any) -> Any:
    if value not in ("text", "input_text", "output_text", "refusal"):
        raise ValueError(f"only text is supported here: write a part of the type 'text' instead of {str(value)[:40]!r}")
    return value


class TextPart(Wire):
    """Text is the only kind of part. Nothing that a request refers to is fetched."""

    type: Annotated[Literal["text", "input_text", "output_text", "refusal"], BeforeValidator(text_kind)]
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[list[TextPart], Field(max_length=MAX_PARTS)]


def join_text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)


class PredictionBody(Wire):
    """OpenAI's predicted output: text that the answer is expected to repeat."""

    type: Literal["content"]
    content: Content


class FunctionSpec(Wire):
    name: FunctionName
    description: str | None = None
    parameters: FreeObject | None = None
    strict: bool | None = None


class ToolSpec(Wire):
    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Wire):
    name: FunctionName


class NamedTool(Wire):
    type: Literal["function"]
    function: NamedFunction


class DecoderBody(OwnWire):
    """Extension: the decoder and its parameters, for a trade of speed against quality. A string is its name."""

    name: Literal["ar", "verify", "confidence", "edit", "window", "canvas"] | None = Field(
        default=None, description="The decoder. Default: that of the model."
    )
    canvas_len: Annotated[int, Field(ge=1, le=1024), WHOLE] | None = Field(
        default=None,
        description="Positions predicted together; all decoders but `ar`. Default: 16, on a CPU at most 8.",
    )
    rule: Literal["threshold", "static", "dynamic", "factor", "entropy"] | None = Field(
        default=None, description="`confidence`: how positions are chosen. Default: threshold."
    )
    threshold: Probability | None = Field(
        default=None, description="`confidence` and `edit`: probability at which a position is filled. Default: 0.9."
    )
    steps: Annotated[int, Field(ge=1, le=1024), WHOLE] | None = Field(
        default=None,
        description="`confidence`, rules static and dynamic: forwards per canvas; `canvas`: the most. Default: 8.",
    )
    factor: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="`confidence` with the rule factor: larger commits more positions at a time. Default: 1.",
    )
    entropy_bound: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None, description="Rule entropy, `window` and `canvas`: nats that one step may commit. Default: 0.1."
    )
    edit_threshold: Probability | None = Field(
        default=None, description="`edit`: probability above which a filled position is overwritten. Default: 0.9."
    )
    edit_passes: Annotated[int, Field(ge=0, le=1024), WHOLE] | None = Field(
        default=None, description="`edit`: forwards after the last position is filled. Default: 16."
    )
    stutter_penalty: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None, description="`edit`: logit penalty for repeating the token on the left. Default: 2."
    )
    first_temperature: Annotated[float, Field(ge=0.01, le=10)] | None = Field(
        default=None, description="`canvas`: temperature of the first step. Default: 0.8."
    )
    last_temperature: Annotated[float, Field(ge=0.01, le=10)] | None = Field(
        default=None, description="`canvas`: temperature of the last step. Default: 0.4."
    )
    stop_entropy: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="`canvas`: mean entropy below which an unchanged canvas ends; 0: never. Default: 0.005.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict):
            raise ValueError('must be the name of a decoder, or an object such as {"name": "ar"}')
        return value
