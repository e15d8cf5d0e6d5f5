"""Applies an update snippet to a file: lines that the snippet does not change are copied byte for byte.

The snippet shows changed code with some context lines. `// ... existing code ...`, in any comment syntax, stands for
omitted code. If the position of a change is certain the merge needs no model; otherwise the model rewrites only the
ambiguous span. Pure functions of text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from quicksilver.editing.edit_request import inside_tags
from quicksilver.editing.line_diff import differences
from quicksilver.editing.loss_check import adds_errors, has_new_marker, lost_lines, removed_lines
from quicksilver.editing.merge_parts import LineEdit, indent_of
from quicksilver.editing.splice import (
    Change,
    Segment,
    Source,
    balance,
    is_marker,
    is_whole_file,
    plan_change,
    split_update,
)
from quicksilver.editing.syntax_merge import merge_by_syntax
from quicksilver.editing.update_text import BYTE_ORDER_MARK, FENCED, clean_update
from quicksilver.errors import InvalidRequest
from quicksilver.text.conversation import Message

_MARK = "<|!@#IS_APPLY!@#|>"
# Continue's message without tags, which it sends unless its user has set a template: the file, then the fenced update.
_CONTINUE = re.compile(
    r"(?P<original>.*)\n\nThe following code was suggested as an edit:\n```[^\n`]*\n(?P<update>.*)\n```\n"
    r"Please apply it to the previous code\.[^\n]*\s*",
    re.DOTALL,
)
# A merge by lines that removes more lines than this is not trusted.
_MAX_LOST = 6


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """A file and the snippet that changes it."""

    original: str
    update: str


class Copy(msgspec.Struct, frozen=True, tag=True):
    """Final text: bytes of the original, or new lines of the update."""

    text: str


class Rewrite(msgspec.Struct, frozen=True, tag=True):
    """A span of the original that the model must rewrite so that `update` takes effect."""

    original: str
    update: str


MergedPart = Copy | Rewrite


def parse_apply(prompt: str) -> ApplyRequest:
    """Raises InvalidRequest if a section is missing: an editor would write any other answer into the file."""
    prompt = prompt.replace(_MARK, "")
    untagged = _CONTINUE.fullmatch(prompt)
    if untagged is not None and "<|original_code|>" not in prompt:
        return ApplyRequest(untagged["original"], untagged["update"])
    return ApplyRequest(_section(prompt, "original_code"), _section(prompt, "update_snippet"))


def merge(original: str, update: str) -> list[MergedPart]:
    """The parts of the merged file, in order. If all are `Copy`, their joined texts are the whole file.

    A byte order mark of the file is kept.
    """
    mark = BYTE_ORDER_MARK if original.startswith(BYTE_ORDER_MARK) else ""
    text, update = original.removeprefix(mark), clean_update(original, update)
    parts = _merge(text, update) if text.strip() or not update.strip() else _new_file(update)
    return [Copy(mark), *parts] if mark else parts


def _new_file(update: str) -> list[MergedPart]:
    """The update of an empty file. There is no code that its markers stand for."""
    return [Copy("".join(line for line in update.splitlines(keepends=True) if not is_marker(line)))]


def _merge(original: str, update: str) -> list[MergedPart]:
    """A merge by syntax that would lose code is replaced by a merge by lines, and that by a rewriting of the whole
    file."""
    source = Source(original)
    edits = merge_by_syntax(source.keys, update.rstrip("\n").split("\n"))
    if edits is not None:
        parts = list(_join(_edited(source, edits), original.endswith("\n")))
        text = _certain_text(parts)
        if _keeps_code(original, update, text) and not adds_errors(original, update, text):
            return parts
    parts = _merge_by_lines(source, original, _indented(source, update))
    text = _certain_text(parts)
    is_settled = all(isinstance(part, Copy) for part in parts)
    is_unbalanced = is_settled and balance(original) != balance(text)
    if is_unbalanced or _num_lost(original, update, text) > _MAX_LOST or not _keeps_code(original, update, text):
        return [Rewrite(original, update)]
    return parts


def _merge_by_lines(source: Source, original: str, update: str) -> list[MergedPart]:
    planned: list[tuple[Segment, Change]] = []
    low = 0
    for segment in split_update(update):
        change = plan_change(source, segment, low)
        planned.append((segment, change))
        low = max(low, change.end or 0)
    return list(_join(_assemble(source, planned), original.endswith("\n")))


def _indented(source: Source, update: str) -> str:
    """The update at the indentation of the file, if its first line is in the file once and only with an indentation."""
    lines = update.split("\n")
    first = next((line.rstrip() for line in lines if line.strip() and not is_marker(line)), "")
    found = [key for key in source.keys if key.lstrip() == first]
    if len(found) != 1 or found[0] == first:
        return update
    return "\n".join(indent_of(found[0]) + line if line.strip() else line for line in lines)


def _certain_text(parts: Sequence[MergedPart]) -> str:
    """The merged file in which the spans that are left to the model are unchanged."""
    return "".join(part.text if isinstance(part, Copy) else part.original for part in parts)


def _keeps_code(original: str, update: str, merged: str) -> bool:
    """Whether no line outside the changed definitions is lost and no marker of the update is left in the result."""
    return not has_new_marker(original, merged) and not lost_lines(original, update, merged)


def _num_lost(original: str, update: str, merged: str) -> int:
    """How many more lines the merge removes than it adds, blank lines aside. An update that is the whole new file may
    remove any number of definitions."""
    lines, updated, result = (text.split("\n") for text in (original, update, merged))
    removed = removed_lines(original, merged) if is_whole_file(lines, updated) else set[int]()
    kept = [line for i, line in enumerate(lines) if i not in removed]
    old, new = (Counter(line.strip() for line in text if line.strip()) for text in (kept, result))
    return (old - new).total() - (new - old).total()


def rewrite_messages(part: Rewrite) -> list[Message]:
    """The prompt that makes the model rewrite one part."""
    task = "Apply the update to the code. Answer with the whole resulting code in one fence and nothing else."
    return [Message("user", f"Code:\n```\n{part.original}\n```\n\nUpdate:\n```\n{part.update}\n```\n\n{task}")]


def checked_reply(part: Rewrite, answer: str) -> str | None:
    """The text of a rewritten part, or None if it lost code that the update does not replace or left a marker."""
    text = rewrite_reply(part, answer)
    return text if _keeps_code(part.original, part.update, text) else None


def rewrite_reply(part: Rewrite, answer: str) -> str:
    """The answer without its fence, with the line breaks of the original, also those at its ends."""
    if fenced := FENCED.fullmatch(answer):
        answer = fenced[1]
    text = answer.strip("\r\n")
    if "\r\n" in part.original:
        text = re.sub(r"\r?\n", "\r\n", text)
    inner = part.original.strip("\r\n")
    start, _, end = part.original.partition(inner) if inner else ("", "", part.original)
    return start + text + end


def _section(prompt: str, name: str) -> str:
    start, end = prompt.find(f"<|{name}|>"), prompt.rfind(f"<|/{name}|>")
    if start < 0 or end < start:
        raise InvalidRequest(f"the message has no section <|{name}|> … <|/{name}|>", param="messages")
    return inside_tags(prompt[start + len(f"<|{name}|>") : end])


def _assemble(source: Source, planned: list[tuple[Segment, Change]]) -> Iterator[str | Rewrite]:
    """Lines of the merged file, and the spans left to the model; adjacent spans of unknown end are merged."""
    at = 0
    unplaced: list[Segment] = []
    for segment, change in planned:
        if change.end is None:
            unplaced.append(segment)
            continue
        if unplaced:
            yield _rewrite(source, at, change.start, unplaced)
            at, unplaced = change.start, []
        yield from source.lines[at : change.start]
        if change.lines is None:
            yield _rewrite(source, change.start, change.end, [segment])
        else:
            yield from change.lines
        at = change.end
    if unplaced:
        yield _rewrite(source, at, len(source.lines), unplaced)
    else:
        yield from source.lines[at:]


def _edited(source: Source, edits: list[LineEdit]) -> Iterator[str | Rewrite]:
    """Lines of the file with the edits applied. Unchanged lines are copied byte for byte."""
    at = 0
    for edit in edits:
        yield from source.lines[at : edit.start]
        if edit.update is not None:
            yield Rewrite("".join(source.lines[edit.start : edit.end]), edit.update)
        else:
            yield from _with_original_bytes(source, edit)
        at = edit.end
    yield from source.lines[at:]


def _with_original_bytes(source: Source, edit: LineEdit) -> Iterator[str]:
    """New lines, where a line that equals one of the replaced lines keeps its bytes, such as trailing space."""
    at = edit.start
    for each in differences(source.keys[edit.start : edit.end], [line.rstrip() for line in edit.lines]):
        yield from source.lines[at : edit.start + each.start]
        yield from source.new(edit.lines[each.new_start : each.new_end])
        at = edit.start + each.end
    yield from source.lines[at : edit.end]


def _rewrite(source: Source, start: int, end: int, segments: list[Segment]) -> Rewrite:
    update = "\n...\n".join("\n".join(segment.lines) for segment in segments)
    return Rewrite("".join(source.lines[start:end]), update)


def _join(items: Iterator[str | Rewrite], ends_with_newline: bool) -> Iterator[MergedPart]:
    """Joins lines into parts. The last line ends as the file did; every other line has a line end."""
    run: list[str] = []
    for item in items:
        if run and not run[-1].endswith("\n"):
            run[-1] += "\n"
        if isinstance(item, str):
            run.append(item)
        else:
            yield from [Copy("".join(run))] if run else []
            yield item
            run = []
    if run and not ends_with_newline:
        run[-1] = run[-1].rstrip("\r\n")
    yield from [Copy("".join(run))] if run else []
