"""A compile pool without processes, for tests with trusted schemas."""

from __future__ import annotations

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.tools import compile_tools
from quicksilver.constrain.source import GrammarSource, ToolCallFormat
from quicksilver.core import ConstraintSpec


class DirectGrammars:
    """Compiles in this process and records the sources."""

    def __init__(self) -> None:
        self.is_ready = True
        self.seen: list[tuple[GrammarSource, str]] = []

    async def compile(self, source: GrammarSource, tenant: str) -> ConstraintSpec:
        self.seen.append((source, tenant))
        return compile_tools(source) if isinstance(source, ToolCallFormat) else compile_response_format(source)
