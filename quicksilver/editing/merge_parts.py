"""Helpers of the syntax-aware merge: line edits, snippet items, and rules for definitions, blank lines, decorators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quicksilver.editing.align import is_distinctive
from quicksilver.editing.languages import Language, placeholder
from quicksilver.editing.outline import Definition, Outline, annotation_end, is_decorator
from quicksilver.editing.splice import is_marker

_IMPORT = re.compile(r"\s*(import|from|use|using|#include|require|require_relative|package|include)\b|.*\brequire\(")

# The first line of a block of Python. A header over several lines ends at a deeper indentation.
_PYTHON_BLOCK = re.compile(r"\s*(async|class|def|elif|else|except|finally|for|if|case|match|try|while|with)\b")
_LABEL = re.compile(r"(public|private|protected|signals|(public |private |protected )?slots)\s*:")


class Unclear(Exception):
    """The snippet does not determine where its lines belong."""


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Lines `[start, end)` of the file are replaced by `lines`. If `update` is set, `lines` is empty, and the model
    merges the snippet `update` into these lines of the file."""

    start: int
    end: int
    lines: tuple[str, ...] = ()
    update: str | None = None


@dataclass(frozen=True, slots=True)
class SnippetItem:
    """A part of a scope of the snippet: a marker, a definition, or a run of other lines."""

    start: int
    end: int
    definition: Definition | None = None
    is_marker: bool = False

    @property
    def is_lines(self) -> bool:
        return self.definition is None and not self.is_marker


@dataclass(frozen=True, slots=True)
class LineScope:
    """Lines `[low, high)` and the definitions in them, of the file or of the snippet."""

    low: int
    high: int
    definitions: Sequence[Definition]


def is_import(line: str) -> bool:
    return not line.strip() or _IMPORT.match(line) is not None


def like_import(shown: Sequence[str], imports: Sequence[str]) -> str:
    """An import of the file with the indentation for those of the snippet: one that both have, else the first."""
    texts, indent = {line.strip() for line in shown}, indent_of(shown[0])
    same = [line for line in imports if line.strip() in texts] or imports
    return next((line for line in same if indent_of(line) == indent), same[0])


def same_definitions(new: Definition, olds: Iterable[Definition]) -> list[Definition]:
    return [old for old in olds if (old.kind, old.name) == (new.kind, new.name)]


def same_last_name(new: Definition, olds: Iterable[Definition]) -> list[Definition]:
    """The only definition with the same last name part, such as a method of another receiver; empty if not unique."""
    found = [old for old in olds if old.kind == new.kind and old.name.split(".")[-1] == new.name.split(".")[-1]]
    return found if len(found) == 1 else []


def last_before(definitions: Sequence[Definition], line: int) -> Definition | None:
    return next((definition for definition in reversed(definitions) if definition.start < line), None)


def merged_annotations(new: Sequence[str], old: Sequence[str]) -> list[str]:
    """The comments and decorators above a definition. Those of the snippet replace those of the file; comments of the
    file stay if the snippet has no comments, and decorators of the file stay if it has no decorators."""
    new, kept = [line for line in new if line.strip()], [line.rstrip("\r\n") for line in old]
    comments, decorators = _split_annotations(new)
    above, below = _split_annotations(kept)
    return [*([] if comments else above), *new, *([] if decorators else below)] if new else kept


def _split_annotations(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The comments, and the decorators with their arguments."""
    comments, decorators, at = list[str](), list[str](), 0
    while at < len(lines):
        end = annotation_end(lines, at, len(lines))
        (decorators if is_decorator(lines[at]) else comments).extend(lines[at:end])
        at = end
    return comments, decorators


def only_place(lines: Sequence[str], text: str, low: int, scope: LineScope) -> int | None:
    """The only line from `low` on that equals `text` and is in no definition of the scope; None if there are others."""
    inside = {i for definition in scope.definitions for i in range(definition.start, definition.end)}
    found = [i for i in range(low, scope.high) if i not in inside and lines[i].rstrip() == text.rstrip()]
    return found[0] if len(found) == 1 else None


def content_end(lines: Sequence[str], low: int, high: int) -> int:
    """The end of `[low, high)` without the blank lines there."""
    while high > low and not lines[high - 1].strip():
        high -= 1
    return high


def usual_gap(scope: LineScope) -> int:
    """The most frequent number of lines between two definitions of the scope."""
    pairs = zip(scope.definitions, scope.definitions[1:], strict=False)
    gaps = Counter(b.start - a.end for a, b in pairs)
    return gaps.most_common(1)[0][0] if gaps else 1


def trimmed(item: SnippetItem, lines: Sequence[str]) -> list[SnippetItem]:
    """The run without blank lines at its ends, or nothing if it is blank."""
    filled = [i for i in range(item.start, item.end) if lines[i].strip()]
    return [SnippetItem(filled[0], filled[-1] + 1)] if filled else []


def joined(edits: Sequence[LineEdit]) -> list[LineEdit]:
    """Join insertions at the same position in the order of the snippet."""
    joined: list[LineEdit] = []
    for edit in edits:
        last = joined[-1] if joined else None
        is_same_place = last is not None and edit.start == edit.end == last.end and edit.update is last.update is None
        if last is not None and is_same_place:
            joined[-1] = LineEdit(last.start, last.end, (*last.lines, *edit.lines))
        else:
            joined.append(edit)
    return joined


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def is_bracket(line: str) -> bool:
    return not line.strip(" \t\r[]{},")


def inside_brackets(lines: Sequence[str], scope: LineScope) -> LineScope:
    """The scope without the lines of the outermost brackets of a JSON file."""
    filled = [i for i in range(scope.low, scope.high) if lines[i].strip()]
    low = filled[0] + 1 if filled and is_bracket(lines[filled[0]]) else scope.low
    high = filled[-1] if filled and is_bracket(lines[filled[-1]]) else scope.high
    return LineScope(low, max(low, high), scope.definitions)


def has_missing_child(new: Definition, old: Definition) -> bool:
    """Whether the old definition has a key, section or element that the new one does not have."""
    names = {child.name for child in new.children}
    return any(child.name not in names for child in old.children)


def is_fragment(new: Definition, old: Definition, lines: Sequence[str], old_lines: Sequence[str]) -> bool:
    """Whether a key, section or element may show only a part of the old one: a member is missing, most lines of a long
    one are, or only its last lines are."""
    shown, whole = (
        [line.rstrip() for line in texts] for texts in (lines[new.head : new.end], old_lines[old.head : old.end])
    )
    is_short = 2 * len(shown) < len(whole) and _share_kept(shown, whole) < 0.5
    return has_missing_child(new, old) or is_short or (len(shown) < len(whole) and whole[: len(shown)] == shown)


def is_partial(new: Definition, old: Definition, lines: Sequence[str], old_lines: Sequence[str]) -> bool:
    """Whether a container without markers shows only some members: fewer than half of the old lines are repeated."""
    if old.kind == "function" or not has_missing_child(new, old):
        return False
    return _share_kept(lines[new.head : new.end], old_lines[old.head : old.end]) < 0.5


def is_other_overload(new: Definition, old: Definition, lines: Sequence[str], old_lines: Sequence[str]) -> bool:
    """Whether the parameters differ and fewer than half of the old lines are repeated: the definition may be new."""
    a, b = (
        re.findall(r"\w+", " ".join(texts[d.head : max(d.low, d.head + 1)]).partition("(")[2])
        for texts, d in ((lines, new), (old_lines, old))
    )
    return (
        new.kind == "function"
        and a != b
        and _share_kept(lines[new.low : new.high], old_lines[old.low : old.high]) < 0.5
    )


def _share_kept(new: Sequence[str], old: Sequence[str]) -> float:
    """The share of the old lines that are in the new ones. Lines without words do not count."""
    a, b = (Counter(line.strip() for line in lines if is_distinctive(line)) for lines in (new, old))
    return (a & b).total() / max(b.total(), 1)


def splits_blocks(lines: Sequence[str]) -> bool:
    """Whether the lines have only one end of a conditional or region of the preprocessor, or a label such as
    `private:`, which the lines around them need."""
    texts = [re.sub(r"#\s+", "#", line.strip()) for line in lines]
    opened, closed = (sum(text.startswith(word) for text in texts) for word in (("#if", "#region"), ("#end",)))
    return opened != closed or any(_LABEL.fullmatch(text) for text in texts)


def with_commas(original: Sequence[str], edits: Sequence[LineEdit]) -> list[LineEdit]:
    """Edits of a JSON file with commas between all members and none after the last one."""
    result: list[LineEdit] = []
    for index, edit in enumerate(edits):
        lines = [line.rstrip() for line in edit.lines]
        filled = [i for i, line in enumerate(lines) if line.strip()]
        following = next((line for line in (original[i].strip() for i in range(edit.end, len(original))) if line), "")
        is_followed = any(later.start == edit.end and later.lines for later in edits[index + 1 :])
        if filled:
            last = lines[filled[-1]].rstrip(",")
            lines[filled[-1]] = last if following[:1] in ("}", "]") and not is_followed else last + ","
            result += _comma_above(original, result, edit.start)
        result.append(LineEdit(edit.start, edit.end, tuple(lines), edit.update))
    return result


def _comma_above(original: Sequence[str], before: Sequence[LineEdit], start: int) -> list[LineEdit]:
    """The edit that adds a comma to the member above an inserted one, unless an earlier edit replaced that member."""
    above = next((i for i in reversed(range(start)) if original[i].strip()), None)
    is_edited = above is None or any(edit.start <= above < edit.end for edit in before)
    if above is None or is_edited or original[above].rstrip()[-1:] in (",", "{", "["):
        return []
    return [LineEdit(above, above + 1, (original[above].rstrip() + ",",))]


def is_trusted(snippet: Outline, file: Outline) -> bool:
    """Whether the snippet has only the syntax errors of the file. Elided members of JSON are errors."""
    return snippet.error_lines <= file.error_lines or file.language.name == "json"


def with_placeholders(lines: Sequence[str], language: Language) -> list[str]:
    """Markers become comments of the language, so that the snippet parses."""
    placed: list[str] = []
    for line in lines:
        indent, text = indent_of(line), placeholder(language, placed[-1] if placed else "")
        if is_marker(line) and placed and placed[-1].rstrip().endswith(":") and language.name == "python":
            header = next((above for above in reversed(placed) if _PYTHON_BLOCK.match(above)), placed[-1])
            indent = indent if len(indent) > len(indent_of(header)) else indent_of(header) + "    "
        placed.append(indent + text if is_marker(line) else line)
    return placed
