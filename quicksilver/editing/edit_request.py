"""Parses the next-edit message of an editor.

Accepts every form that editors are known to send: sections in any order, the region inside the file or separate, tags
on their own lines or not, numbered lines. Pure functions of text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from quicksilver.errors import InvalidRequest

CURSOR = "<|cursor|>"
REGION = "code_to_edit"

_MARK = "<|!@#IS_NEXT_EDIT!@#|>"
_SNIPPET_OPEN, _SNIPPET_CLOSE = "<|recently_viewed_code_snippet|>", "<|/recently_viewed_code_snippet|>"
_PATH_LINE = re.compile(r"(?:current_file_path|code_snippet_file_path):[ \t]*([^\n]*)(?:\n|$)")
# Some diffs have the lines of git or of `patch` above their file names.
_DIFF_HEAD = re.compile(
    r"^(?://[^\n]*\n)?(?:Index: [^\n]*\n=+\s*\n|diff --git [^\n]*\n(?:index [^\n]*\n)?)?--- [^\n]*\n\+\+\+ ",
    re.MULTILINE,
)
_NUMBERED = re.compile(r"[ \t]*(\d{1,9})(?: \| ?|\|)(.*)")


@dataclass(frozen=True, slots=True)
class Snippet:
    """Recently viewed code, or context under an editor-specific name (`diagnostics`, `staged_git_diff`, …)."""

    path: str
    code: str


@dataclass(frozen=True, slots=True)
class EditRequest:
    """A parsed message: `before + region + after` is an excerpt of the file, `cursor` an offset in `region`."""

    path: str
    before: str
    region: str
    after: str
    cursor: int | None = None
    snippets: tuple[Snippet, ...] = ()
    # Unified diffs, oldest first.
    history: tuple[str, ...] = ()


def parse_edit(prompt: str) -> EditRequest:
    """Raises InvalidRequest if there is no region to edit."""
    rest = prompt.replace(_MARK, "")
    file, rest = _cut_section(rest, "current_file_content")
    snippets, rest = _cut_section(rest, "recently_viewed_code_snippets")
    history, rest = _cut_section(rest, "edit_diff_history")
    path, file = _cut_path(file)
    before, region, after = _find_region(file, rest)
    request = EditRequest(
        path=path,
        before=before,
        region=region,
        after=after,
        snippets=tuple(_snippet(part) for part in snippets.split(_SNIPPET_OPEN)[1:]),
        history=_split_history(history),
    )
    return _take_cursor(_without_line_numbers(request))


def _cut_section(text: str, name: str) -> tuple[str, str]:
    """Content of a section, and the text without it. The last closing tag ends it, since a file may contain tags."""
    start = text.find(f"<|{name}|>")
    if start < 0:
        return "", text
    inner = start + len(f"<|{name}|>")
    end = text.rfind(f"<|/{name}|>")
    if end < inner:
        return _without_first_break(text[inner:]), text[:start]
    return inside_tags(text[inner:end]), text[:start] + text[end + len(f"<|/{name}|>") :]


def inside_tags(text: str) -> str:
    """The content between two tags on lines of their own, without the line breaks next to the tags."""
    return re.sub(r"\r?\n\Z", "", _without_first_break(text))


def _without_first_break(text: str) -> str:
    return re.sub(r"\A\r?\n", "", text)


def _split_history(history: str) -> tuple[str, ...]:
    starts = [match.start() for match in _DIFF_HEAD.finditer(history)]
    cuts = pairwise([0, *starts, len(history)])
    return tuple(diff for start, end in cuts if (diff := history[start:end].strip("\r\n")))


def _snippet(part: str) -> Snippet:
    path, code = _cut_path(inside_tags(part.partition(_SNIPPET_CLOSE)[0]))
    return Snippet(path, code)


def _cut_path(text: str) -> tuple[str, str]:
    match = _PATH_LINE.match(text)
    return (match[1].strip(), text[match.end() :]) if match else ("", text)


def _find_region(file: str, rest: str) -> tuple[str, str, str]:
    area, outside = _cut_section(rest, f"area_around_{REGION}")
    for text in (file, area):
        if f"<|{REGION}|>" in text:
            return _split_region(text)
    if f"<|{REGION}|>" not in outside:
        raise InvalidRequest(f"the message has no <|{REGION}|> section", param="messages")
    region, _ = _cut_section(outside, REGION)
    before, after = _around(file, region.replace(CURSOR, "", 1))
    return before, region, after


def _around(file: str, region: str) -> tuple[str, str]:
    """The text of the file before and after a region that is shown beside it. A cursor in the file tells equal places
    apart, and is the place of an empty region."""
    cursor, file = file.find(CURSOR), file.replace(CURSOR, "", 1)
    at = file.find(region, max(cursor - len(region), 0)) if region else cursor
    if region and not 0 <= at <= cursor:
        at = file.find(region)
    return (file[:at], file[at + len(region) :]) if at >= 0 else (file, "")


def _split_region(text: str) -> tuple[str, str, str]:
    """Text before, inside and after the region. A closing tag on its own line replaces a line break."""
    before, _, tail = text.partition(f"<|{REGION}|>")
    region, closed, after = tail.rpartition(f"<|/{REGION}|>")
    if not closed:
        return before, _without_first_break(tail), ""
    region, after = map(_without_first_break, (region, after))
    if line_break := re.search(r"\r?\n\Z", region):
        return before, region[: line_break.start()], line_break[0] + after if after else ""
    return before, region, after


def _without_line_numbers(request: EditRequest) -> EditRequest:
    numbered = [_NUMBERED.fullmatch(line) for line in request.region.split("\n")]
    numbers = [int(match[1]) for match in numbered if match]
    if len(numbers) < len(numbered) or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return request
    above, below = request.before.rstrip("\r\n").split("\n")[-1], request.after.lstrip("\r\n").split("\n")[0]
    if not _has_number(above, numbers[0] - 1) or not _has_number(below, numbers[-1] + 1):
        return request  # Code such as `4 | flags`, or a row of a table.
    before, region, after = map(_strip_numbers, (request.before, request.region, request.after))
    return replace(request, before=before, region=region, after=after)


def _has_number(line: str, number: int) -> bool:
    """Whether the line has this number, or is empty at an end of the file."""
    match = _NUMBERED.fullmatch(line)
    return not line.strip() or (match is not None and int(match[1]) == number)


def _strip_numbers(text: str) -> str:
    matches = ((line, _NUMBERED.fullmatch(line)) for line in text.split("\n"))
    return "\n".join(match[2] if match else line for line, match in matches)


def _take_cursor(request: EditRequest) -> EditRequest:
    at = request.region.find(CURSOR)
    if at >= 0:
        return replace(request, region=request.region.replace(CURSOR, "", 1), cursor=at)
    return replace(request, before=request.before.replace(CURSOR, "", 1), after=request.after.replace(CURSOR, "", 1))
