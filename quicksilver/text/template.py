"""A checkpoint's Jinja chat template, run in a sandbox with bounds on time and output.

Only templates of the checkpoint come here, never one from a request. Strings from outside pass through quoted, so
special tokens in the rendered text are the template's own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quicksilver.errors import CheckpointRefused, InvalidRequest
from quicksilver.text.conversation import Message, PromptRequest, Tool, ToolCall
from quicksilver.text.default_template import parse_arguments
from quicksilver.text.escaping import Quoting, unquote
from quicksilver.text.reasoning_effort import asks_to_think
from quicksilver.text.tokenizer import Tokenizer

MAX_SECONDS = 2.0
MAX_CHARS = 8 << 20

_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
"""String methods that make much out of little."""


class CheckpointTemplate:
    """Writes prompts as the checkpoint's authors do."""

    def __init__(self, tokenizer: Tokenizer, source: str) -> None:
        self._tokenizer = tokenizer
        self._quoting = Quoting(tokenizer.markup_tokens)
        environment = _Sandbox()
        try:
            tree = environment.parse(source)
            _add_ticks(tree, environment)
            self._template = environment.from_string(tree)
        except (TemplateError, RecursionError) as error:
            raise CheckpointRefused(f"the checkpoint's chat template cannot be read: {error}") from error

    def write(self, request: PromptRequest) -> list[int]:
        ids: list[int] = []
        for part in self._tokenizer.split_markup(self._render(self._variables(request))):
            ids += [part] if isinstance(part, int) else self._tokenizer.encode(unquote(part))
        return ids

    def _render(self, variables: dict[str, Any]) -> str:
        deadline = time.monotonic() + MAX_SECONDS
        chunks, size = [], 0
        try:
            for chunk in self._template.generate(variables, __tick=_ticker(deadline)):
                size += len(chunk)
                if size > MAX_CHARS:
                    raise SecurityError(f"more than {MAX_CHARS} characters")
                chunks.append(chunk)
        except InvalidRequest:
            raise
        except Exception as error:  # a template fails in as many ways as a program
            raise InvalidRequest(f"the chat template cannot write these messages: {error}", param="messages") from error
        return "".join(chunks)

    def _variables(self, request: PromptRequest) -> dict[str, Any]:
        return {
            **self._tokenizer.template_tokens,
            "messages": [self._message(message) for message in request.messages],
            "tools": [self._tool(tool) for tool in request.tools] or None,
            "add_generation_prompt": request.add_generation_prompt,
            "enable_thinking": asks_to_think(request.effort),
        }

    def _message(self, message: Message) -> dict[str, Any]:
        quote = self._quoting.quote
        found = {
            "content": quote(message.content),
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


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by the base class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.filters["tojson"] = _to_json
        for name in ("center", "format", "indent", "wordwrap", "random"):
            del self.filters[name]
        self.globals.update(raise_exception=_raise, strftime_now=_now)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise SecurityError(f"{operator} is for numbers only, and powers are refused")
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if (wrapped := super().wrap_str_format(value)) and re.search(r"\d{4}|:[^}]*\{", value.__self__):
            raise SecurityError("a format that wide")
        return wrapped

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _PADDING and super().is_safe_attribute(obj, attr, value)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=min(indent, 8) if indent else None)


def _raise(message: str) -> None:
    raise InvalidRequest(unquote(message), param="messages")


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _ticker(deadline: float) -> Callable[[], str]:
    def tick() -> str:
        if time.monotonic() > deadline:
            raise SecurityError(f"more than {MAX_SECONDS} seconds")
        return ""

    return tick


def _add_ticks(tree: nodes.Template, environment: _Sandbox) -> None:
    """Puts a look at the clock into every loop and macro body, the only places where a template can linger."""
    bodies = [loop.body for loop in tree.find_all(nodes.For)] + [macro.body for macro in tree.find_all(nodes.Macro)]
    for body in bodies:
        call = nodes.Call(nodes.Name("__tick", "load"), [], [], None, None)
        body.insert(0, nodes.Output([call]).set_lineno(1).set_environment(environment))
