"""What a caller asks for, in plain values: an answer of some form, or tools to choose from.

These records cross into the compile processes as JSON, so they hold nothing but JSON values. A tag is either literal
text or the id of a special token.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from quicksilver.constrain.compile.rewrite.vocabulary import Json

Tag = int | str
"""A special token's id, or text."""


class Policy(StrEnum):
    """What becomes of a keyword that the mask cannot guarantee."""

    PROVED = "proved"
    """It is refused: every finished output is valid by construction."""
    CHECKED = "checked"
    """It is left to the final check, and the result says that it needs one."""


class FormatKind(StrEnum):
    """What `ResponseFormat.value` holds: a schema, nothing, an expression, a grammar, or a list of labels."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    LARK = "lark"
    CHOICE = "choice"


class Layout(StrEnum):
    """White space in JSON: none, or as Python's `json.dumps` writes it, which many models were trained on."""

    COMPACT = "compact"
    SPACED = "spaced"


class ToolChoice(StrEnum):
    """`NAMED` is one call of the only tool in the plan."""

    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Thinking:
    """A leading thinking section. Without `open` the prompt has opened it already; with it the section is optional."""

    close: Tag
    open: Tag | None = None


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The whole answer has one form."""

    kind: FormatKind
    value: Any = None
    policy: Policy = Policy.PROVED
    layout: Layout = Layout.COMPACT
    thinking: Thinking | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters` is the schema of the arguments; None takes none. Only strict tools are refused for it."""

    name: str
    parameters: Json | None = None
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolTags:
    """How a call is marked: open, padding, the call, padding, close; `between` separates calls."""

    open: Tag
    close: Tag
    padding: str = ""
    between: str = ""
    layout: Layout = Layout.SPACED


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """Text, or calls, or text and then calls, as `choice` allows. `answer` gives the text a form of its own."""

    tools: tuple[Tool, ...]
    tags: ToolTags
    choice: ToolChoice = ToolChoice.AUTO
    max_calls: int = 16
    """1 forbids parallel calls."""
    answer: ResponseFormat | None = None
    thinking: Thinking | None = None


GrammarSource = ResponseFormat | ToolCallFormat


@dataclass(frozen=True, slots=True)
class Envelope:
    """A source on its way to another process."""

    format: ResponseFormat | None = None
    tools: ToolCallFormat | None = None


def encode(source: GrammarSource) -> bytes:
    """`source` as JSON; equal sources give equal bytes."""
    envelope = Envelope(tools=source) if isinstance(source, ToolCallFormat) else Envelope(format=source)
    return msgspec.json.encode(envelope)


def decode(data: bytes) -> GrammarSource:
    envelope = msgspec.json.decode(data, type=Envelope)
    source = envelope.format or envelope.tools
    assert source is not None
    return source
