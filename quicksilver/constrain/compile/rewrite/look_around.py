"""Patterns with look-around and back-references, which no mask can check in general.

Look-ahead at the start of a pattern is a further condition on the same text: a positive one is a pattern of its own,
and a negative one may be left out where no text that the grammar admits matches it. The rest is left to validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Look-around, back-references, and boundaries of words.
_UNSUPPORTED = re.compile(r"\(\?<?[=!]|\\[1-9bB]")
_PART = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)


class LookAhead(NamedTuple):
    must_match: bool
    # Anchored at the start of the text.
    pattern: str


def split_look_ahead(pattern: str) -> tuple[list[LookAhead], str]:
    """The look-aheads with which an anchored pattern begins, and the pattern without them."""
    found: list[LookAhead] = []
    rest = pattern.removeprefix("^")
    while pattern.startswith("^") and rest.startswith(("(?=", "(?!")) and (end := _group_end(rest)):
        inner = rest[3 : end - 1].removeprefix("^")
        found.append(LookAhead(rest[2] == "=", f"^(?:{inner})"))
        rest = rest[end:]
    # Above the level of groups, an alternative would not begin with the look-ahead, and a quantifier would repeat it.
    if not found or rest[:1] in tuple("*+?{") or any(char == "|" and not depth for _, char, depth in _signs(rest)):
        return [], pattern
    return found, f"^{rest}"


def is_unsupported(pattern: str) -> bool:
    return _UNSUPPORTED.search(_without_literals(pattern)) is not None


def _group_end(pattern: str) -> int | None:
    """The place after the group that opens at the start."""
    return next((i + 1 for i, char, depth in _signs(pattern) if char == ")" and not depth), None)


def _signs(pattern: str) -> Iterator[tuple[int, str, int]]:
    """The characters with their places, and the depth of groups after each."""
    depth = 0
    for i, char in enumerate(_without_literals(pattern)):
        depth += (char == "(") - (char == ")")
        yield i, char, depth


def _without_literals(pattern: str) -> str:
    """The pattern with blanks for classes and escapes of signs, in the same places."""
    return _PART.sub(lambda part: part[0] if re.match(r"\\?\w|[^\\\[]", part[0]) else " " * len(part[0]), pattern)
