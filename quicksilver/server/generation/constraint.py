"""Wire formats and tools -> a constraint for the engine, and the independent check of what comes out.

The grammar is compiled and refused by the pool before the engine hears of the request. An answer that claims to be
finished is checked once more against the schema as it was sent; one that fails never gets its last chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quicksilver.constrain.source import (
    FormatKind,
    GrammarSource,
    Layout,
    Policy,
    ResponseFormat,
    Thinking,
    Tool,
    ToolCallFormat,
    ToolChoice,
    ToolTags,
)
from quicksilver.constrain.validate import validate_output
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar, InvalidRequest
from quicksilver.server.endpoints.chat import prompt as chat_prompt
from quicksilver.server.endpoints.chat.wire import (
    ChatBody,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
)
from quicksilver.server.http.fields import FunctionSpec

MAX_CALLS = 16


class GrammarPool(Protocol):
    """Where grammars are compiled: apart from this process, with a bound on time and memory."""

    async def compile(self, source: GrammarSource, tenant: str) -> ConstraintSpec:
        """The constraint, or InvalidGrammar that names the keyword."""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """What a finished answer must satisfy, in the caller's own words."""

    schema: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Schemas of the arguments, by tool."""
    needs_call: bool = False
    """Whether the caller demanded a tool call."""

    def fault(self, content: str, calls: list[tuple[str, str]]) -> str | None:
        """Why the answer is not valid; None when it is. An answer that only calls tools owes no content."""
        if self.needs_call and not calls:
            return "a tool call was required and none came"
        if self.schema is not None and (content or not calls) and (fault := validate_output(self.schema, content)):
            return fault
        for name, arguments in calls:
            if name in self.arguments and (fault := validate_output(self.arguments[name], arguments)):
                return f"arguments of {name}: {fault}"
        return None


@dataclass(frozen=True, slots=True)
class Constraint:
    source: GrammarSource
    check: OutputCheck | None
    param: str
    """The request field to name when the grammar is refused."""


def find_constraint(
    body: ChatBody, tools: chat_prompt.ToolPlan, tags: ToolTags, thinking: Thinking | None
) -> Constraint | None:
    """`thinking` is the section that the prompt has left open, if any."""
    wanted = read_format(body)
    schema = _schema_of(wanted)
    if not tools.specs:
        if wanted is None:
            return None
        check = OutputCheck(schema) if schema is not None else None
        return Constraint(_with_thinking(wanted, thinking), check, "response_format")
    plan = ToolCallFormat(
        tools=tuple(Tool(spec.name, spec.parameters, bool(spec.strict)) for spec in tools.specs),
        tags=tags,
        choice=_choice(tools),
        max_calls=MAX_CALLS if tools.allows_parallel else 1,
        answer=wanted,
        thinking=thinking,
    )
    check = OutputCheck(schema, _argument_schemas(tools.specs), needs_call=tools.is_required)
    return Constraint(plan, check, "tools")


async def compile_constraint(constraint: Constraint, pool: GrammarPool | None, tenant: str) -> ConstraintSpec:
    if pool is None:
        raise InvalidRequest(f"{constraint.param}: this server compiles no grammars", param=constraint.param)
    try:
        return await pool.compile(constraint.source, tenant)
    except InvalidGrammar as refusal:
        refusal.param = refusal.param or constraint.param
        raise


def read_format(body: ChatBody) -> ResponseFormat | None:
    wanted = body.response_format
    if isinstance(wanted, JsonObjectFormat):
        return ResponseFormat(FormatKind.JSON_OBJECT, layout=Layout.SPACED)
    if isinstance(wanted, JsonSchemaFormat):
        policy = Policy.PROVED if wanted.json_schema.strict else Policy.CHECKED
        schema = wanted.json_schema.schema_
        return ResponseFormat(FormatKind.JSON_SCHEMA, {} if schema is None else schema, policy, Layout.SPACED)
    if isinstance(wanted, RegexFormat):
        return ResponseFormat(FormatKind.REGEX, wanted.pattern)
    if isinstance(wanted, GrammarFormat):
        return ResponseFormat(FormatKind.LARK, wanted.grammar)
    return None


def _choice(tools: chat_prompt.ToolPlan) -> ToolChoice:
    if tools.is_named:
        return ToolChoice.NAMED
    return ToolChoice.REQUIRED if tools.is_required else ToolChoice.AUTO


def _schema_of(wanted: ResponseFormat | None) -> Any:
    if wanted is None:
        return None
    if wanted.kind is FormatKind.JSON_OBJECT:
        return {"type": "object"}
    return wanted.value if wanted.kind is FormatKind.JSON_SCHEMA else None


def _argument_schemas(specs: tuple[FunctionSpec, ...]) -> dict[str, Any]:
    return {spec.name: spec.parameters for spec in specs if spec.parameters is not None}


def _with_thinking(wanted: ResponseFormat, thinking: Thinking | None) -> ResponseFormat:
    return ResponseFormat(wanted.kind, wanted.value, wanted.policy, wanted.layout, thinking)
