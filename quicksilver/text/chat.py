"""Messages and tools -> prompt ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quicksilver.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made. `arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function on offer. `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. Wire dialects (developer, function, content parts) are translated before they get here."""

    role: Role
    content: str = ""
    reasoning: str = ""
    """What the assistant thought in that turn; templates may leave it out."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Of a tool turn: the call it answers."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Prompt ids, and whether they end inside the thinking channel."""

    ids: tuple[int, ...]
    opens_thinking: bool


class ChatTemplate:
    """A checkpoint's way of writing conversations."""

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """Our own form where the tokenizer is nano's or the checkpoint has no template; else the checkpoint's."""
        raise RuntimeError("skeleton")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        effort: str | None = None,
        add_generation_prompt: bool = True,
    ) -> RenderedPrompt:
        raise RuntimeError("skeleton")
