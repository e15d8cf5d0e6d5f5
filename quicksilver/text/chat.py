"""Messages and tools -> prompt ids, in the format that the weights were trained on.

Invariant: text from outside (contents, names, tool descriptions, arguments, results) never becomes a special token,
whichever template writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from quicksilver.text.conversation import Message, PromptRequest, Role, Tool, ToolCall
from quicksilver.text.default_template import OwnTemplate
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
    def write(self, request: PromptRequest) -> list[int]: ...


class ChatTemplate:
    """The prompt format of one model."""

    def __init__(self, tokenizer: Tokenizer, writer: _Writer, source: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._writer = writer
        # The checkpoint's Jinja template; None for the default template.
        self.source = source

    @classmethod
    def own(cls, tokenizer: Tokenizer) -> ChatTemplate:
        return cls(tokenizer, OwnTemplate(tokenizer))

    @classmethod
    def from_source(cls, tokenizer: Tokenizer, source: str) -> ChatTemplate:
        """A Jinja template of the checkpoint; never one from a request."""
        return cls(tokenizer, CheckpointTemplate(tokenizer, source), source)

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The checkpoint's template; the default one if that has no tools or the weights use reserved tool tags."""
        source = tokenizer.chat_template
        if source is None or "tools" not in source or _uses_reserved_tags(tokenizer):
            return cls.own(tokenizer)
        return cls.from_source(tokenizer, source)

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
        ids = tuple(self._writer.write(request))
        return RenderedPrompt(ids, request.add_generation_prompt and self._ends_thinking(ids))

    def _ends_thinking(self, ids: tuple[int, ...]) -> bool:
        roles = self._tokenizer.roles
        tags = [i for i in ids[-_OPENING_LEN:] if i in (roles.think_open, roles.think_close)]
        return bool(tags) and tags[-1] == roles.think_open


def _uses_reserved_tags(tokenizer: Tokenizer) -> bool:
    return tokenizer.roles.tool_open != find_roles(tokenizer.special_tokens, ()).tool_open
