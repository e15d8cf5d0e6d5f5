"""Fields that several bodies share: the strict base model, numbers with their bounds, text parts, tools.

Every list and number of a request has an upper bound here, with a test at the bound and one beyond it.
Unknown fields are ignored, since clients send many; a known field of the wrong type is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema

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
# Of free JSON as it is read; a schema has a tighter bound of its own, in the grammar compiler.
MAX_JSON_DEPTH = 64


class Wire(BaseModel):
    """A request body: strict types, unknown fields dropped."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class GenerationBody(Wire):
    """The body of a request that generates; keeps the bytes that were sent, so that two requests can be compared."""

    _raw: bytes = PrivateAttr(b"")

    @property
    def raw(self) -> bytes:
        return self._raw

    def keep_raw(self, raw: bytes) -> None:
        self._raw = raw


def whole(value: Any) -> Any:
    """JSON has one number type, so 16.0 is the integer 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def tame(value: Any) -> Any:
    """Free JSON within bounds: few nodes, shallow, and no integer that another reader would round."""
    stack, num_nodes = [(value, 1)], 0
    while stack:
        node, depth = stack.pop()
        num_nodes += 1
        if num_nodes > MAX_JSON_NODES or depth > MAX_JSON_DEPTH:
            raise ValueError(f"more than {MAX_JSON_NODES} values or nested deeper than {MAX_JSON_DEPTH}")
        if isinstance(node, int) and abs(node) > MAX_SAFE_INT:
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
OutputTokens = Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS), WHOLE]
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
    include_obfuscation: bool | None = None


class TextPart(Wire):
    """Text is the only kind of part. Nothing that a request refers to is fetched."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[list[TextPart], Field(max_length=MAX_PARTS)]


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


class DecoderBody(Wire):
    """Extension: the decoder and its parameters, for a trade of speed against quality."""

    name: Literal["ar", "verify", "confidence", "edit"] | None = None
    canvas_len: Annotated[int, Field(ge=1, le=1024), WHOLE] | None = None
    rule: Literal["threshold", "static", "factor", "entropy"] | None = None
    threshold: Probability | None = None
    steps: Annotated[int, Field(ge=1, le=1024), WHOLE] | None = None
    factor: Annotated[float, Field(ge=0, le=100)] | None = None
    entropy_bound: Annotated[float, Field(ge=0, le=100)] | None = None
    edit_threshold: Probability | None = None
    edit_passes: Annotated[int, Field(ge=0, le=1024), WHOLE] | None = None
    stutter_penalty: Annotated[float, Field(ge=0, le=100)] | None = None
