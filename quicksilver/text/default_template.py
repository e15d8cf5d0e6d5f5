"""The default chat template: ChatML turns, tools as JSON lines in the system turn, calls between tags.

Used for nano, which was trained on it, for checkpoints without a template, and for tools where a template has none.
Built from ids and text, never from a rendered string, so untrusted text cannot become a special token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from quicksilver.errors import InvalidRequest
from quicksilver.text.conversation import Message, PromptRequest, Tool, ToolCall
from quicksilver.text.reasoning_effort import asks_to_think
from quicksilver.text.tokenizer import Tokenizer

TOOL_OPEN, TOOL_CLOSE = "<tool_call>", "</tool_call>"
# The tags as plain text, for tokenizers that have no token in that role.
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

# The system message that nano was trained with, and the one of checkpoints without a chat template.
NANO_SYSTEM = "You are quicksilver nano, a small diffusion language model. Answer clearly and briefly."
OTHER_SYSTEM = "You are quicksilver, a diffusion language model. Answer clearly and briefly."

MAX_ARGUMENTS_DEPTH = 64

Segment = int | str


class OwnTemplate:
    """Writes prompts for one tokenizer; a role the tokenizer has no token for is written as a plain-text tag."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        roles = tokenizer.roles
        self._tool_open: Segment = TOOL_OPEN if roles.tool_open is None else roles.tool_open
        self._tool_close: Segment = TOOL_CLOSE if roles.tool_close is None else roles.tool_close

    @property
    def can_think(self) -> bool:
        return self._tokenizer.roles.think_open is not None

    def write(self, request: PromptRequest) -> list[int]:
        return self._encode(self._segments(request))

    def _segments(self, request: PromptRequest) -> Iterator[Segment]:
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
            if think is not None and asks_to_think(request.effort):
                yield think

    def _tool_lines(self, tools: tuple[Tool, ...]) -> str:
        if not tools:
            return ""
        lines = "\n".join(_dump(_describe(tool)) for tool in tools)
        if self._tokenizer.roles.tool_open is not None:
            return f"\n\nTools:\n{lines}"
        how = f'{TOOL_OPEN}{{"name": "...", "arguments": {{...}}}}{TOOL_CLOSE}'
        return f"\n\nTools:\n{lines}\n\nTo call a tool, write {how}"

    def _message(self, message: Message, reasoning: str) -> Iterator[Segment]:
        if message.role == "assistant":
            yield from self._opening("assistant")
            yield from self._thoughts(reasoning)
            yield message.content
            for call in message.tool_calls:
                yield from (self._tool_open, write_call(call), self._tool_close)
            yield from self._closing()
        else:
            header = f"{message.role} name={message.name}" if message.name else message.role
            yield from self._turn(header, message.content)

    def _thoughts(self, reasoning: str) -> Iterator[Segment]:
        roles = self._tokenizer.roles
        if reasoning and roles.think_open is not None and roles.think_close is not None:
            yield from (roles.think_open, reasoning, roles.think_close)

    def _turn(self, header: str, content: str) -> Iterator[Segment]:
        yield from self._opening(header)
        yield content
        yield from self._closing()

    def _opening(self, header: str) -> Iterator[Segment]:
        if self._tokenizer.roles.turn_open is None:
            raise InvalidRequest("this model has neither a chat template nor turn tokens", param="messages")
        yield self._tokenizer.roles.turn_open
        yield f"{header}\n"

    def _closing(self) -> Iterator[Segment]:
        close = self._tokenizer.roles.turn_close
        yield self._tokenizer.eos_ids[0] if close is None else close
        yield "\n"

    def _encode(self, segments: Iterator[Segment]) -> list[int]:
        """Neighbouring pieces of text are encoded as one, so that tokens do not depend on where pieces met."""
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


def write_call(call: ToolCall) -> str:
    """The text between the tags of a tool call."""
    return f'{{"name": {_dump(call.name)}, "arguments": {_dump(parse_arguments(call.arguments))}}}'


def parse_arguments(arguments: str) -> object:
    """The JSON value of a call's arguments; text that is not JSON stays a string. Deep nesting is refused."""
    try:
        value = json.loads(arguments)
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        return arguments
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_ARGUMENTS_DEPTH:
            raise _too_deep()
        level = [child for node in level for child in _children(node)]
    return value


def _children(node: object) -> Iterable[object]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"tool call arguments are nested deeper than {MAX_ARGUMENTS_DEPTH}", param="messages")


def _describe(tool: Tool) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
