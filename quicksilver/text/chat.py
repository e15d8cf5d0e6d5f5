"""What a conversation and its reasoning effort ask of a model: prompt ids in the format that the weights were trained
on, and a token limit for the reasoning.

Invariant: text from outside (contents, names, tool descriptions, arguments, results) never becomes a special token,
whichever template writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from quicksilver.core import ThinkBudget
from quicksilver.errors import InvalidRequest
from quicksilver.text.conversation import Message, PromptRequest, Role, Tool, ToolCall, parse_arguments
from quicksilver.text.special_tokens import TOOL_CLOSE, TOOL_OPEN, find_roles
from quicksilver.text.template import CheckpointTemplate
from quicksilver.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Message", "PromptRequest", "RenderedPrompt", "Role", "Tool", "ToolCall"]

# The system message that nano was trained with, and the one of checkpoints without a chat template.
NANO_SYSTEM = "You are quicksilver nano, a small diffusion language model. Answer clearly and briefly."
OTHER_SYSTEM = "You are quicksilver, a diffusion language model. Answer clearly and briefly."

# Share of the token limit of an answer that each effort allows for reasoning.
_SHARES = {"none": 0.0, "instant": 0.0, "low": 0.25, "medium": 0.5, "high": 0.75}
EFFORTS: tuple[str, ...] = tuple(_SHARES)
# Tokens that reasoning leaves to the answer in any case.
_SHORTEST_ANSWER = 16
# Written where the reasoning reaches its token limit.
CUT_THOUGHT = " …\nI will answer now.\n"

# How many last tokens of a prompt are searched for an open thinking tag.
_OPENING_LEN = 8

_Segment = int | str


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Prompt ids, and whether they end inside the thinking channel."""

    ids: tuple[int, ...]
    opens_thinking: bool


class _Writer(Protocol):
    @property
    def can_think(self) -> bool: ...

    def write(self, request: PromptRequest, *, thinks: bool) -> list[int]:
        """`thinks`: whether `request.effort` asks for reasoning."""


class _WithTools:
    """The writer of a checkpoint whose template has no tools: the default template writes conversations with tools."""

    def __init__(self, plain: _Writer, with_tools: _Writer) -> None:
        self._plain, self._with_tools = plain, with_tools

    @property
    def can_think(self) -> bool:
        return self._plain.can_think

    def write(self, request: PromptRequest, *, thinks: bool) -> list[int]:
        has_tools = request.tools or any(turn.role == "tool" or turn.tool_calls for turn in request.messages)
        return (self._with_tools if has_tools else self._plain).write(request, thinks=thinks)


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
        return cls(tokenizer, _DefaultTemplate(tokenizer), system=system)

    @classmethod
    def from_source(
        cls, tokenizer: Tokenizer, source: str, system: str | None = None, *, lacks_tools: bool = False
    ) -> ChatTemplate:
        """A Jinja template of the checkpoint; never one from a request. No system message is added by default.
        If it `lacks_tools`, the default template writes conversations with tools."""
        writer: _Writer = CheckpointTemplate(tokenizer, source)
        if lacks_tools:
            writer = _WithTools(writer, _DefaultTemplate(tokenizer))
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
        ids = tuple(self._writer.write(request, thinks=asks_to_think(request.effort)))
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
    return NANO_SYSTEM if tokenizer.reserved_family == "smollm2" else OTHER_SYSTEM


def _uses_reserved_tags(tokenizer: Tokenizer) -> bool:
    return tokenizer.roles.tool_open != find_roles(tokenizer.special_tokens, ()).tool_open


class _DefaultTemplate:
    """ChatML turns, tools as JSON lines in the system turn, calls between tags.

    Used for nano, which was trained on it, for checkpoints without a template, and for tools where a template has none.
    Built from ids and text, never from a rendered string. A role that the tokenizer has no token for is written as a
    plain-text tag.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        roles = tokenizer.roles
        self._tool_open: _Segment = TOOL_OPEN if roles.tool_open is None else roles.tool_open
        self._tool_close: _Segment = TOOL_CLOSE if roles.tool_close is None else roles.tool_close

    @property
    def can_think(self) -> bool:
        return self._tokenizer.roles.think_open is not None

    def write(self, request: PromptRequest, *, thinks: bool) -> list[int]:
        return self._encode(self._segments(request, thinks=thinks))

    def _segments(self, request: PromptRequest, *, thinks: bool) -> Iterator[_Segment]:
        head, turns = _split_system(request.messages)
        if system := (head + self._tool_lines(request.tools)).removeprefix("" if head else "\n\n"):
            yield from self._turn("system", system)
        last_user = max((i for i, message in enumerate(turns) if message.role == "user"), default=-1)
        for i, message in enumerate(turns):
            # Reasoning before the last user message is dropped. Reasoning after it belongs to the current answer.
            yield from self._message(message, message.reasoning if i > last_user else "")
        if request.add_generation_prompt:
            yield from self._opening("assistant")
            think = self._tokenizer.roles.think_open
            if think is not None and thinks:
                yield think

    def _tool_lines(self, tools: tuple[Tool, ...]) -> str:
        if not tools:
            return ""
        lines = "\n".join(_dump(_describe(tool)) for tool in tools)
        if self._tokenizer.roles.tool_open is not None:
            return f"\n\nTools:\n{lines}"
        how = f'{TOOL_OPEN}{{"name": "...", "arguments": {{...}}}}{TOOL_CLOSE}'
        return f"\n\nTools:\n{lines}\n\nTo call a tool, write {how}"

    def _message(self, message: Message, reasoning: str) -> Iterator[_Segment]:
        if message.role == "assistant":
            yield from self._opening("assistant")
            yield from self._thoughts(reasoning)
            yield message.content
            for call in message.tool_calls:
                yield from (self._tool_open, _write_call(call), self._tool_close)
            yield from self._closing()
        else:
            header = f"{message.role} name={message.name}" if message.name else message.role
            yield from self._turn(header, message.content)

    def _thoughts(self, reasoning: str) -> Iterator[_Segment]:
        roles = self._tokenizer.roles
        if reasoning and roles.think_open is not None and roles.think_close is not None:
            yield from (roles.think_open, reasoning, roles.think_close)

    def _turn(self, header: str, content: str) -> Iterator[_Segment]:
        yield from self._opening(header)
        yield content
        yield from self._closing()

    def _opening(self, header: str) -> Iterator[_Segment]:
        if self._tokenizer.roles.turn_open is None:
            raise InvalidRequest("this model has neither a chat template nor turn tokens", param="messages")
        yield self._tokenizer.roles.turn_open
        yield f"{header}\n"

    def _closing(self) -> Iterator[_Segment]:
        close = self._tokenizer.roles.turn_close
        yield self._tokenizer.eos_ids[0] if close is None else close
        yield "\n"

    def _encode(self, segments: Iterator[_Segment]) -> list[int]:
        """Adjacent pieces of text are joined before they are encoded, so that tokens do not depend on the pieces."""
        ids: list[int] = []
        text = ""
        for segment in segments:
            if isinstance(segment, str):
                text += segment
            else:
                ids += [*self._tokenizer.encode(text), segment]
                text = ""
        return ids + self._tokenizer.encode(text)


def _split_system(messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...]]:
    if messages and messages[0].role == "system":
        return messages[0].content, messages[1:]
    return "", messages


def _write_call(call: ToolCall) -> str:
    """The text between the tags of a tool call."""
    return f'{{"name": {_dump(call.name)}, "arguments": {_dump(parse_arguments(call.arguments))}}}'


def _describe(tool: Tool) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def think_budget(effort: str | None, max_new_tokens: int) -> int:
    """Tokens of `max_new_tokens` that may go into thinking."""
    return max(0, min(int(max_new_tokens * _share(effort)), max_new_tokens - _SHORTEST_ANSWER))


def limit_thinking(
    effort: str | None, max_new_tokens: int, close_id: int, encode: Callable[[str], Sequence[int]]
) -> ThinkBudget:
    """The budget of an answer whose prompt opens the reasoning channel. The closing line is part of the budget."""
    whole = ThinkBudget((close_id,), max_new_tokens, tuple(encode(CUT_THOUGHT)))
    return lower_budget(whole, think_budget(effort, max_new_tokens))


def lower_budget(think: ThinkBudget, most: int) -> ThinkBudget:
    """The same limit with at most `most` tokens, the closing line included. Where only the line would fit, it is left
    out."""
    budget, num_cut = min(think.max_tokens + len(think.cut_ids), most), len(think.cut_ids)
    if budget <= num_cut:
        return replace(think, max_tokens=budget, cut_ids=())
    return replace(think, max_tokens=budget - num_cut)


def asks_to_think(effort: str | None) -> bool:
    """Whether an answer with this effort begins with reasoning; without an effort it does not."""
    return _share(effort) > 0


def _share(effort: str | None) -> float:
    share = _SHARES.get(effort or "none")
    if share is None:
        raise InvalidRequest(f"reasoning_effort is one of {', '.join(EFFORTS)}", param="reasoning_effort")
    return share
