"""Which texts may be given to a tree-sitter parser.

Deep nesting makes some grammars take seconds for a few kilobytes, and the scanners of others overflow the stack. Files
that people write stay far below these limits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_DEPTH = 100
MAX_OPENERS = 40
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
# Block quotes and list items that open on one line, each inside the one before.
_OPENERS = re.compile(rf"(?:(?:>|[-*+?:][ \t]|\d{{1,9}}[.)][ \t])[ \t]*+){{{MAX_OPENERS + 1}}}")
# Short strings are matched as a whole, because their brackets need not be balanced.
_TOKEN = re.compile(r"""\"(?:\\.|[^"\\\n]){0,200}\"|'(?:\\.|[^'\\\n]){0,200}'|[(\[{]|[)\]}]""")


def is_parseable(lines: Sequence[str]) -> bool:
    """Whether block openers, indentation and brackets are nested within the limits."""
    if _indent_depth(lines) > MAX_DEPTH:
        return False
    text = "\n".join(lines)
    return _OPENERS.search(text) is None and _bracket_depth(text) <= MAX_DEPTH


def _indent_depth(lines: Sequence[str]) -> int:
    """The largest number of indentations that enclose a line."""
    deepest, open_indents = 0, list[int]()
    for line in lines:
        if not (content := line.lstrip()):
            continue
        indent = len(line) - len(content)
        while open_indents and open_indents[-1] >= indent:
            open_indents.pop()
        open_indents.append(indent)
        deepest = max(deepest, len(open_indents))
    return deepest


def _bracket_depth(text: str) -> int:
    """The largest number of open brackets outside of short strings."""
    deepest = depth = 0
    for token in _TOKEN.findall(text):
        if token in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif depth and token in _CLOSING:
            depth -= 1
    return deepest
