"""Brings an update snippet into one form: no fence around it, `\\n` line ends, and the usual markers.

Some models write a marker without dots, such as `# rest unchanged`, or only the dots. Such a line is a marker if the
file does not have it. Pure functions of text.
"""

from __future__ import annotations

import re

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
_DOTS = re.compile(r"(?:\.{3,}|…)\s*")


def clean_update(original: str, update: str) -> str:
    """The update of `original` without a fence and byte order mark, with one form of line ends and markers."""
    update = _without_fence(original, update.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n"))
    known = {line.strip() for line in original.split("\n")}
    return "\n".join(line if line.strip() in known else _usual_marker(line) for line in update.split("\n"))


def _without_fence(original: str, update: str) -> str:
    """A fence may be a part of the file if that is Markdown or plain text with fences."""
    fenced = FENCED.fullmatch(update)
    if fenced is None or "```" not in original:
        return fenced[1] if fenced else update
    outline = outline_of(original)
    return update if outline is None or outline.language.is_data else fenced[1]


def _usual_marker(line: str) -> str:
    """`// ...` in place of a marker without dots, or of dots in the first column. Indented dots are code of Python."""
    found = None if is_marker(line) else _PLAIN_MARKER.fullmatch(line)
    return f"{found['indent']}// ..." if found else "// ..." if _DOTS.fullmatch(line) else line
