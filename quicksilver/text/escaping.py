"""Quoting of untrusted text, so that it cannot form a special token in a rendered template.

A quoted string contains break characters, so that in the rendered prompt no special token can begin, end or be inside
it, whatever the template adds to it or strips from it. `unquote` returns exactly the text that was quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_BREAK, _QUOTE = "\U0010fffc", "\U0010fffd"
_UNQUOTE = re.compile(f"{_QUOTE}([{_QUOTE}{_BREAK}])|[{_QUOTE}{_BREAK}]")

# Words of JSON Schema that templates compare with. They are not quoted. None of them can form a special token.
_SCHEMA_WORDS = frozenset(
    {"type", "properties", "required", "description", "enum", "items", "anyOf", "oneOf", "allOf", "default", "format"}
    | {"title", "nullable", "additionalProperties", "const", "minimum", "maximum", "$ref", "$defs", "pattern"}
    | {"string", "number", "integer", "object", "array", "boolean", "null"}
)


class Quoting:
    """Quoting for the special tokens of one tokenizer."""

    def __init__(self, special_tokens: Iterable[str]) -> None:
        names = list(special_tokens)
        first = "".join(re.escape(c) for c in sorted({name[0] for name in names}))
        last = "".join(re.escape(c) for c in sorted({name[-1] for name in names}))
        self._edges = re.compile(f"(?<=[{first}])|(?=[{last}])" if names else "(?!)")
        self._longest = max(map(len, names), default=0)

    def quote(self, text: str) -> str:
        if text in _SCHEMA_WORDS:
            return text
        safe = re.sub(f"([{_QUOTE}{_BREAK}])", rf"{_QUOTE}\1", text)
        safe = self._edges.sub(_BREAK, safe)
        # A short text could be the middle of a special token whose first and last characters come from the template.
        return re.sub(r"(?=\S)", _BREAK, safe, count=1) if len(text.strip()) < self._longest else safe

    def quote_json(self, value: Any) -> Any:
        """A JSON value with every string in it quoted, keys included."""
        if isinstance(value, str):
            return self.quote(value)
        if isinstance(value, dict):
            return {self.quote(str(key)): self.quote_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.quote_json(item) for item in value]
        return value


def unquote(text: str) -> str:
    """Text as it was before quoting."""
    return _UNQUOTE.sub(lambda match: match[1] or "", text)
