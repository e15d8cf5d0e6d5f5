"""Brings an update snippet into one form: no fence around it, `\\n` line ends, and the usual markers.

Some models write a marker without dots, such as `# rest unchanged`, or only the dots. Such a line is a marker if the
file does not have it. Pure functions of text.
"""

from __future__ import annotations

import re
from itertools import pairwise

from quicksilver.editing.outline import outline_of
from quicksilver.editing.splice import COMMENT, is_marker

BYTE_ORDER_MARK = "\ufeff"
FENCED = re.compile(r"\s*```[^\n`]*\n(.*?)\n?```\s*", re.DOTALL)

_CODE = r"(?:code|file|class|function|functions|method|methods|module|imports|implementation|body|logic|definitions)"
_SAME = r"(?:unchanged|(?:the[ ])?same|as[ ]before|omitted)"
_PLAIN_MARKER = re.compile(
    rf"""(?P<indent>\s*){COMMENT}\s*(?:
         [(\[<]*(?:the[ ])?(?:rest|remainder)(?:[ ]of[ ](?:the[ ]|this[ ])?{_CODE})?
            [ ](?:(?:is|are|remains?|stays?)[ ])?{_SAME}
         |[(\[<]*(?:all[ ]|the[ ])*(?:existing|other|remaining)[ ]{_CODE}
            [ ](?:(?:is|are|remains?|stays?)[ ])?{_SAME}
         |[(\[<]+(?:existing|unchanged|remaining)[ ]{_CODE}(?=[)\]>])
         )[)\]>.]*\s*(?:\*/|-->|\*/\}}|\*\))?\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_DOTS = re.compile(r"(?P<indent>\s*)(?:\.{3,}|…)\s*")
# The second and later lines of a block comment begin with one more space.
_TAB, _SPACES = re.compile(r"\t+(?=\S)"), re.compile(r"  +(?=[^\s*])")


def clean_update(original: str, update: str) -> str:
    """The update of `original` without a fence and byte order mark, with one form of line ends, markers and
    indentation."""
    update = _without_fence(original, update.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n"))
    keys, lines = [line.rstrip() for line in original.split("\n")], update.split("\n")
    known = {key.strip() for key in keys}
    is_code = any(map(_DOTS.fullmatch, lines)) and _has_dots(keys)
    marked = (line if line.strip() in known else _usual_marker(line, is_code) for line in lines)
    return "\n".join(like_indentation(keys, list(marked)))


def _without_fence(original: str, update: str) -> str:
    """A fence may be a part of the file if that is Markdown or plain text with fences."""
    fenced = FENCED.fullmatch(update)
    if fenced is None or "```" not in original:
        return fenced[1] if fenced else update
    outline = outline_of(original)
    return update if outline is None or outline.language.is_data else fenced[1]


def _has_dots(keys: list[str]) -> bool:
    """Whether indented dots are code, as in Python, or may be text."""
    outline = outline_of("\n".join(keys))
    return outline is None or outline.language.name == "python"


def _usual_marker(line: str, has_dots: bool) -> str:
    """`// ...` in place of a marker without dots, or of dots alone."""
    found = None if is_marker(line) else _PLAIN_MARKER.fullmatch(line) or _DOTS.fullmatch(line)
    is_code = found is not None and found.re is _DOTS and has_dots and found["indent"]
    return line if found is None or is_code else f"{found['indent']}// ..."


def like_indentation(keys: list[str], lines: list[str]) -> list[str]:
    """The lines with tabs in place of spaces, or the reverse, if the file is indented only by the other of the two."""
    has_tabs, has_spaces = (any(map(pattern.match, keys)) for pattern in (_TAB, _SPACES))
    shows_tabs, shows_spaces = (any(map(pattern.match, lines)) for pattern in (_TAB, _SPACES))
    if has_tabs == has_spaces or (has_tabs, has_spaces) != (shows_spaces, shows_tabs):
        return lines
    width = _width(lines if has_tabs else keys)
    old, new = (" " * width, "\t") if has_tabs else ("\t", " " * width)
    return [_reindented(line, old, new) for line in lines]


def _width(lines: list[str]) -> int:
    """The number of spaces of one level: the smallest difference between two indentations."""
    indents = sorted({0, *(len(found[0]) for found in map(_SPACES.match, lines) if found)})
    return min((b - a for a, b in pairwise(indents) if b - a > 1), default=4)


def _reindented(line: str, old: str, new: str) -> str:
    text = line.lstrip(" \t")
    indent = line[: len(line) - len(text)]
    return indent.replace(old, new) + text
