"""Sources of grammars: the format of an answer, or tools that the model may call.

The records are sent to the compile processes as JSON, so they hold JSON values only. A tag is either literal text or
the id of a special token.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from quicksilver.constrain.compile.rewrite.vocabulary import Json

# The id of a special token, or literal text.
Tag = int | str


class Policy(StrEnum):
    """What happens to a keyword that the token mask cannot guarantee."""

    # It is refused: every finished output is valid by construction.
    GUARANTEED = "guaranteed"
    # It is left to the validation of the finished output; the result has `needs_validation` set.
    VALIDATED = "validated"


class FormatKind(StrEnum):
    """What `ResponseFormat.value` holds: a schema, nothing, an expression, a grammar, or a list of labels."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    LARK = "lark"
    CHOICE = "choice"


class Layout(StrEnum):
    """White space in JSON: none, or as `json.dumps` of Python writes it, which is common in training data."""

    COMPACT = "compact"
    SPACED = "spaced"


class ToolChoice(StrEnum):
    """NAMED means exactly one call of the only tool."""

    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Thinking:
    """A leading thinking section. Without `open` the prompt has already opened it; with `open` it is optional."""

    close: Tag
    open: Tag | None = None


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The format of a whole answer."""

    kind: FormatKind
    value: Any = None
    policy: Policy = Policy.GUARANTEED
    layout: Layout = Layout.COMPACT
    thinking: Thinking | None = None


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """`parameters` is the schema of the arguments; None means no arguments. Only strict tools are refused for it. A
    tool with `text` takes plain text of that format instead; a Lark format without a value admits any text."""

    name: str
    parameters: Json | None = None
    is_strict: bool = False
    text: ResponseFormat | None = None


@dataclass(frozen=True, slots=True)
class ToolTags:
    """The text around a call: open, padding, the call, padding, close. `between` separates calls."""

    open: Tag
    close: Tag
    padding: str = ""
    between: str = ""
    layout: Layout = Layout.SPACED


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """Text, calls, or text followed by calls, as `choice` allows. `answer` is the format of the text."""

    tools: tuple[ToolSignature, ...]
    tags: ToolTags
    choice: ToolChoice = ToolChoice.AUTO
    # 1 forbids parallel calls.
    max_calls: int = 16
    answer: ResponseFormat | None = None
    thinking: Thinking | None = None


GrammarSource = ResponseFormat | ToolCallFormat


@dataclass(frozen=True, slots=True)
class Envelope:
    """A source as it is sent to a compile process."""

    format: ResponseFormat | None = None
    tools: ToolCallFormat | None = None


def encode(source: GrammarSource) -> bytes:
    """`source` as JSON. Equal sources give equal bytes, so the bytes are a cache key."""
    envelope = Envelope(tools=source) if isinstance(source, ToolCallFormat) else Envelope(format=source)
    return msgspec.json.encode(envelope)


def decode(data: bytes) -> GrammarSource:
    envelope = msgspec.json.decode(data, type=Envelope)
    source = envelope.format or envelope.tools
    assert source is not None
    return source
