"""Literal words in the patterns of a grammar, as hints for the search for a completion.

A pattern such as `.+\\.(png|gif)` allows any byte at most positions; only its literal runs lead to its end. They are
extracted from the text of the grammar once. A useless hint costs one check and never changes a result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

MAX_WORDS = 24
# One member of each character class, by the letter of its escape.
CLASSES = {"d": "0", "w": "a", "s": " ", "n": "\n", "t": "\t"}
PIECE = re.compile(
    r"\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escaped>.)|\[\^?\\?(?P<member>[^\]\\])[^\]]*\]|(?P<count>\{[^}]*\})"
    r"|\(\?(?:P?<\w+>|[:=!])|(?P<plain>[^\\\[\](){}|*+?.^$])|.",
    re.DOTALL,
)


def words_of(grammar: str) -> tuple[bytes, ...]:
    """Literal runs of all patterns in a grammar, in order of appearance, each once."""
    found: dict[bytes, None] = {}
    for pattern in patterns_of(json.loads(grammar)):
        found |= dict.fromkeys(run.encode() for run in runs_of(pattern))
        if len(found) >= MAX_WORDS:
            break
    return tuple(found)[:MAX_WORDS]


def patterns_of(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name in ("pattern", "lark_grammar") and isinstance(value, str):
                yield value
            else:
                yield from patterns_of(value)
    elif isinstance(part, list):
        for value in part:
            yield from patterns_of(value)


def runs_of(pattern: str) -> Iterator[str]:
    """Runs of literal characters, and one member of each character class."""
    run = ""
    for piece in PIECE.finditer(pattern):
        escaped = piece["escaped"]
        if piece["plain"] or piece["hex"] or (escaped and not escaped.isalnum()):
            run += piece["plain"] or escaped or chr(int(piece["hex"], 16))
            continue
        if run:
            yield run
        run = ""
        member = piece["member"] or CLASSES.get(escaped or "")
        if member:
            yield member
    if run:
        yield run
