"""Incremental parser for the text between tool-call tags: a name, then pieces of the arguments.

Reads character by character, so the result does not depend on how the stream was cut. Text that is not a call is
returned whole; arguments that were already streamed are never withdrawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_TEXT_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*\}')
_LONGEST_HEADER = 4096


class CallParser:
    """One call. `close_tag` is the text that ends it, or empty where a special token does. A call of one of the
    `text_tools` is an object with its name, a line break, and plain text, which `padding` separates from the end."""

    def __init__(
        self, tool_names: Collection[str], close_tag: str = "", text_tools: Collection[str] = (), padding: str = ""
    ) -> None:
        self._tool_names = tool_names
        self._text_tools = text_tools
        self._padding = padding
        # The end of the plain text, which may be padding or part of the closing tag.
        self._held = ""
        self._close_tag = close_tag
        self._step = self._in_header
        # What was read in the present step: all of a header, or all that follows the arguments.
        self._body: list[str] = []
        self._window = ""
        self._fresh: list[str] = []
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._pending_name = ""
        # Set once the text is known to be a call to a tool on offer.
        self.name = ""
        self.is_closed = False

    def push(self, text: str) -> str:
        """Reads up to the closing tag; what follows it is returned."""
        for at, char in enumerate(text):
            self._step(char)
            if self.is_closed:
                return text[at + 1 :]
        return ""

    def take(self) -> tuple[str, str]:
        """The name, if it became known since the last take, and the arguments read since."""
        name, self._pending_name = self._pending_name, ""
        text = "".join(self._fresh)
        self._fresh.clear()
        return name, text

    def close(self) -> str:
        """The end, by tag or because nothing follows. Returns the text that is not part of a call."""
        rest = "".join(self._body)
        if self.is_closed and self._close_tag:
            rest = rest[: -len(self._close_tag)]
        if self.name and self.name in self._text_tools:
            self._fresh.append(self._held.removesuffix(self._padding))
            return ""
        if self.name:
            return "" if rest.strip() in ("", "}") else rest
        if (whole := _parse_whole(rest, self._tool_names)) is None:
            return rest
        name, arguments = whole
        self._set_name(name)
        self._fresh.append(arguments)
        return ""

    def _in_header(self, char: str) -> None:
        if char == "{" and len(self._body) < _LONGEST_HEADER and self._read_name():
            self._body.clear()
            self._step = self._in_arguments
            self._in_arguments(char)
        elif char == "\n" and self._text_tools and self._read_text_name():
            self._body.clear()
            self._step = self._in_text
        else:
            self._look_for_end(char)

    def _read_name(self) -> bool:
        match = _HEADER.fullmatch("".join(self._body))
        name = _parse_string(match[1]) if match else None
        if name is None or name not in self._tool_names:
            return False
        self._set_name(name)
        return True

    def _read_text_name(self) -> bool:
        match = _TEXT_HEADER.fullmatch("".join(self._body)) if len(self._body) < _LONGEST_HEADER else None
        name = _parse_string(match[1]) if match else None
        if name is None or name not in self._text_tools:
            return False
        self._set_name(name)
        return True

    def _in_text(self, char: str) -> None:
        self._held += char
        if self._close_tag and self._held.endswith(self._close_tag):
            self._held = self._held.removesuffix(self._close_tag)
            self.is_closed = True
            return
        certain = max(0, len(self._held) - len(self._padding) - len(self._close_tag))
        self._fresh.append(self._held[:certain])
        self._held = self._held[certain:]

    def _set_name(self, name: str) -> None:
        self.name = self._pending_name = name

    def _in_arguments(self, char: str) -> None:
        self._fresh.append(char)
        if self._is_escaped:
            self._is_escaped = False
        elif self._in_string:
            self._is_escaped = char == "\\"
            self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._step = self._look_for_end

    def _look_for_end(self, char: str) -> None:
        self._body.append(char)
        if self._close_tag:
            self._window = (self._window + char)[-len(self._close_tag) :]
            self.is_closed = self._window == self._close_tag


def _parse_string(text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _parse_whole(text: str, tool_names: Collection[str]) -> tuple[str, str] | None:
    """Name and arguments of a call in any other spelling: keys in another order, arguments as a string or absent."""
    try:
        call = json.loads(text)
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str) or name not in tool_names:
            return None
        arguments = call.get("arguments", call.get("parameters", {}))
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # An escaped half of a surrogate pair stays an escape: it has no bytes in UTF-8.
    return name, written.encode("utf-8", "backslashreplace").decode()
