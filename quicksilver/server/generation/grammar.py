"""Grammars for constrained answers: where they are compiled, and the validation of the finished output.

A grammar is compiled, or refused, before the engine is called. An answer that ends by itself is validated once more
against the schema as it was sent; an invalid one never gets its last chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quicksilver.constrain.source import GrammarSource
from quicksilver.constrain.validate import validate_output
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar, InvalidRequest


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
