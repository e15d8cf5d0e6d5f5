"""Grammars for constrained answers: where they are compiled, the tags of tool calls in them, and the validation of the
finished output.

A grammar is compiled, or refused, before the engine is called. It requires tool calls in exactly the form of the
model's own template, which is found by rendering two calls with it. An answer that ends by itself is validated once
more against the schema as it was sent; an invalid one never gets its last chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quicksilver.constrain.source import GrammarSource, Layout, ToolTags
from quicksilver.constrain.validate import validate_output
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar, InvalidRequest
from quicksilver.text.chat import ChatTemplate, Message, Tool, ToolCall
from quicksilver.text.tokenizer import Tokenizer


class GrammarPool(Protocol):
    """Compiles grammars in other processes, with bounds on time and memory."""

    @property
    def is_ready(self) -> bool:
        """Whether at least one process answers."""

    async def compile(self, source: GrammarSource, tenant: str) -> ConstraintSpec:
        """The constraint, or InvalidGrammar that names the keyword."""


@dataclass(frozen=True, slots=True)
class OutputValidator:
    """What a finished answer must satisfy."""

    schema: Any = None
    # Schemas of the arguments, by tool name.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    requires_call: bool = False

    def find_fault(self, content: str, calls: Sequence[tuple[str, str]]) -> str | None:
        """Why the answer is invalid, or None. An answer that only calls tools needs no content."""
        if self.requires_call and not calls:
            return "a tool call was required and none came"
        if self.schema is not None and (content or not calls) and (fault := validate_output(self.schema, content)):
            return fault
        for name, arguments in calls:
            if name in self.arguments and (fault := validate_output(self.arguments[name], arguments)):
                return f"arguments of {name}: {fault}"
        return None


async def compile_grammar(source: GrammarSource, pool: GrammarPool | None, tenant: str, param: str) -> ConstraintSpec:
    """`param` is the request field to name if the grammar is refused."""
    if pool is None:
        raise InvalidRequest(f"{param}: this server compiles no grammars", param=param)
    try:
        return await pool.compile(source, tenant)
    except InvalidGrammar as refusal:
        refusal.param = refusal.param or param
        raise


# Tags of models without special tokens for them.
TOOL_OPEN, TOOL_CLOSE = "<tool_call>", "</tool_call>"

CALL = ToolCall("probe", '{"a": 1}', "call_1")
CONVERSATION = (Message("user", "hello"), Message("assistant", tool_calls=(CALL, CALL)))


def read_tool_tags(template: ChatTemplate, tokenizer: Tokenizer) -> ToolTags:
    roles = tokenizer.roles
    if roles.tool_open is None or roles.tool_close is None:
        return ToolTags(TOOL_OPEN, TOOL_CLOSE)
    try:
        ids = template.render(CONVERSATION, (Tool("probe"),), add_generation_prompt=False).ids
    except InvalidRequest:
        # Some templates refuse this conversation; their models get the plain form.
        ids = ()
    opens = [at for at, token_id in enumerate(ids) if token_id == roles.tool_open][-2:]
    closes = [at for at, token_id in enumerate(ids) if token_id == roles.tool_close][-2:]
    if len(opens) < 2 or len(closes) < 2 or not opens[0] < closes[0] < opens[1] < closes[1]:
        return ToolTags(roles.tool_open, roles.tool_close)
    inside = tokenizer.decode(ids[opens[1] + 1 : closes[1]])
    return ToolTags(
        roles.tool_open,
        roles.tool_close,
        padding=inside[: len(inside) - len(inside.lstrip())],
        between=tokenizer.decode(ids[closes[0] + 1 : opens[1]]),
        layout=Layout.SPACED if '": ' in inside else Layout.COMPACT,
    )
