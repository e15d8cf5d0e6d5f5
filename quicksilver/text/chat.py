"""Messages and tools -> prompt ids, in the format that the weights were trained on.

Invariant: text from outside (contents, names, tool descriptions, arguments, results) never becomes a special token,
whichever template writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from quicksilver.text.conversation import Message, PromptRequest, Role, Tool, ToolCall
from quicksilver.text.default_template import NANO_SYSTEM, OTHER_SYSTEM, OwnTemplate
from quicksilver.text.special_tokens import find_roles
from quicksilver.text.template import CheckpointTemplate
from quicksilver.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Message", "PromptRequest", "RenderedPrompt", "Role", "Tool", "ToolCall"]

# How many last tokens of a prompt are searched for an open thinking tag.
_OPENING_LEN = 8


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Prompt ids, and whether they end inside the thinking channel."""

    ids: tuple[int, ...]
    opens_thinking: bool


class _Writer(Protocol):
    @property
    def can_think(self) -> bool: ...

    def write(self, request: PromptRequest) -> list[int]: ...


class _WithTools:
    """A checkpoint's template without tools: conversations with tools are written by the default template."""

    def __init__(self, plain: _Writer, with_tools: _Writer) -> None:
        self._plain, self._with_tools = plain, with_tools

    @property
    def can_think(self) -> bool:
        return self._plain.can_think

    def write(self, request: PromptRequest) -> list[int]:
        has_tools = request.tools or any(turn.role == "tool" or turn.tool_calls for turn in request.messages)
        return (self._with_tools if has_tools else self._plain).write(request)


class ChatTemplate:
    """The prompt format of one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        writer: _Writer,
        source: str | None = None,
        system: str = "",
        *,
        lacks_tools: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._writer = writer
        self.lacks_tools = lacks_tools
        # The checkpoint's Jinja template; None for the default template.
        self.source = source
        # The system message of conversations that begin with none; empty: such conversations get none.
        self.system = system

    @classmethod
    def own(cls, tokenizer: Tokenizer, system: str | None = None) -> ChatTemplate:
        """The default template. `system` is the default system message; None: `default_system`."""
        system = default_system(tokenizer) if system is None else system
        return cls(tokenizer, OwnTemplate(tokenizer), system=system)

    @classmethod
    def from_source(
        cls, tokenizer: Tokenizer, source: str, system: str | None = None, *, lacks_tools: bool = False
    ) -> ChatTemplate:
        """A Jinja template of the checkpoint; never one from a request. No system message is added by default.
        If it `lacks_tools`, the default template writes conversations with tools."""
        writer: _Writer = CheckpointTemplate(tokenizer, source)
        if lacks_tools:
            writer = _WithTools(writer, OwnTemplate(tokenizer))
        return cls(tokenizer, writer, source, system or "", lacks_tools=lacks_tools)

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, system: str | None = None) -> ChatTemplate:
        """The checkpoint's template; the default one if there is none or the weights use reserved tool tags."""
        source = tokenizer.chat_template
        if source is None or _uses_reserved_tags(tokenizer):
            return cls.own(tokenizer, system)
        return cls.from_source(tokenizer, source, system, lacks_tools="tools" not in source)

    @property
    def can_think(self) -> bool:
        """Whether a reasoning effort has an effect: the template opens a reasoning section, or lets the model do so."""
        return self._writer.can_think

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        effort: str | None = None,
        add_generation_prompt: bool = True,
    ) -> RenderedPrompt:
        return self.write(PromptRequest(tuple(messages), tuple(tools), effort, add_generation_prompt))

    def write(self, request: PromptRequest) -> RenderedPrompt:
        if self.system and not (request.messages and request.messages[0].role == "system"):
            request = replace(request, messages=(Message("system", self.system), *request.messages))
        ids = tuple(self._writer.write(request))
        return RenderedPrompt(ids, request.add_generation_prompt and self._ends_thinking(ids))

    def _ends_thinking(self, ids: tuple[int, ...]) -> bool:
        roles = self._tokenizer.roles
        tags = [i for i in ids[-_OPENING_LEN:] if i in (roles.think_open, roles.think_close)]
        return bool(tags) and tags[-1] == roles.think_open


def default_system(tokenizer: Tokenizer) -> str:
    """The system message of chats without one. Empty for a checkpoint that has a chat template of its own: its prompts
    must be those of its authors."""
    if tokenizer.chat_template is not None and not _uses_reserved_tags(tokenizer):
        return ""
    return NANO_SYSTEM if tokenizer.identity == "smollm2" else OTHER_SYSTEM


def _uses_reserved_tags(tokenizer: Tokenizer) -> bool:
    return tokenizer.roles.tool_open != find_roles(tokenizer.special_tokens, ()).tool_open
