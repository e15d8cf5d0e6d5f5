"""A checkpoint's Jinja chat template, rendered in a sandbox with bounds on time, output and intermediate values.

Only templates of the checkpoint are rendered, never one from a request. Strings from outside are quoted, so special
tokens in the rendered text are the template's own.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import TemplateError

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.text.conversation import Message, PromptRequest, Tool, ToolCall, parse_arguments
from quicksilver.text.special_tokens import find_roles
from quicksilver.text.template_sandbox import Quoting, Sandbox, check_chars, ticker, unquote
from quicksilver.text.tokenizer import Tokenizer

# LLaDA2 and Ling write "detailed thinking on" or "off" after the system message, by a variable that their templates set
# to a constant. The constant becomes the variable of the request.
_THINKING_OPTION = "thinking_option"
_THINKING_OFF = re.compile(rf"set {_THINKING_OPTION} = (?:'off'|\"off\")")


class CheckpointTemplate:
    """Writes prompts as the checkpoint's authors do."""

    def __init__(self, tokenizer: Tokenizer, source: str) -> None:
        self._tokenizer = tokenizer
        self._quoting = Quoting(tokenizer.markup_tokens)
        self._think_tags = _reserved_think_tags(tokenizer, source)
        self._source = source = _THINKING_OFF.sub(f"set {_THINKING_OPTION} = {_THINKING_OPTION}", source)
        try:
            self._template = Sandbox().compile_bounded(source)
        except (TemplateError, RecursionError) as error:
            raise CheckpointRefused(f"the checkpoint's chat template cannot be read: {error}") from error

    @property
    def can_think(self) -> bool:
        """Whether thinking tokens are reserved for these weights, or the template writes or switches it."""
        if self._think_tags is not None:
            return True
        names = {token_id: name for name, token_id in self._tokenizer.special_tokens.items()}
        tag = names.get(self._tokenizer.roles.think_open or -1)
        switches = ("enable_thinking", _THINKING_OPTION, *([tag] if tag is not None else []))
        return any(name in self._source for name in switches)

    def write(self, request: PromptRequest, *, thinks: bool) -> list[int]:
        ids: list[int] = []
        for part in self._tokenizer.split_markup(self._render(self._variables(request, thinks=thinks))):
            ids += [part] if isinstance(part, int) else self._tokenizer.encode(unquote(part))
        # Reserved thinking begins with a line that names the effort: the weights learned one length for each.
        if self._think_tags and request.add_generation_prompt and thinks:
            ids += self._tokenizer.encode_markup(f"{self._think_tags[0]}{request.effort}\n")
        return ids

    def _render(self, variables: dict[str, Any]) -> str:
        chunks, size = [], 0
        try:
            for chunk in self._template.generate(variables, __tick=ticker()):
                size += len(chunk)
                check_chars(size)
                chunks.append(chunk)
        except InvalidRequest:
            raise
        except Exception as error:  # a template fails in as many ways as a program
            raise InvalidRequest(f"the chat template cannot write these messages: {error}", param="messages") from error
        return "".join(chunks)

    def _variables(self, request: PromptRequest, *, thinks: bool) -> dict[str, Any]:
        last_user = max((i for i, message in enumerate(request.messages) if message.role == "user"), default=-1)
        return {
            **self._tokenizer.template_tokens,
            "messages": [
                self._message(message, request.effort if thinks and i > last_user else None)
                for i, message in enumerate(request.messages)
            ],
            "tools": [self._tool(tool) for tool in request.tools] or None,
            "add_generation_prompt": request.add_generation_prompt,
            "enable_thinking": thinks,
            _THINKING_OPTION: "on" if thinks else "off",
        }

    def _message(self, message: Message, effort: str | None) -> dict[str, Any]:
        """`effort` is given for messages since the last question, whose thoughts are written in reserved tags."""
        quote = self._quoting.quote
        thoughts = ""
        if effort and self._think_tags and message.reasoning:
            thoughts = f"{self._think_tags[0]}{effort}\n{quote(message.reasoning)}{self._think_tags[1]}"
        found = {
            "content": thoughts + quote(message.content),
            "name": quote(message.name),
            "reasoning_content": quote(message.reasoning),
            "tool_call_id": quote(message.tool_call_id),
            "tool_calls": [self._call(call) for call in message.tool_calls],
        }
        return {"role": message.role, **{key: value for key, value in found.items() if value or key == "content"}}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = self._quoting.quote_json(parse_arguments(call.arguments))
        function = {"name": self._quoting.quote(call.name), "arguments": arguments}
        return {"id": self._quoting.quote(call.id), "type": "function", "function": function}

    def _tool(self, tool: Tool) -> dict[str, Any]:
        name, description = map(self._quoting.quote, (tool.name, tool.description))
        parameters = self._quoting.quote_json(dict(tool.parameters))
        return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _reserved_think_tags(tokenizer: Tokenizer, source: str) -> tuple[str, str] | None:
    """Spellings of the thinking tokens where they are reserved ones that the template does not write itself."""
    is_native = find_roles(tokenizer.special_tokens, ()).think_open is not None
    names = {token_id: name for name, token_id in tokenizer.special_tokens.items()}
    opens, closes = names.get(tokenizer.roles.think_open or -1), names.get(tokenizer.roles.think_close or -1)
    return None if is_native or opens is None or closes is None or opens in source else (opens, closes)
