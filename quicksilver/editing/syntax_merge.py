"""Merges an update snippet into a file by its definitions: functions, methods, classes and other named blocks.

A definition of the snippet replaces the definition of the same kind, name and scope in the file. A definition without
a counterpart is new and is inserted next to its neighbours in the snippet. Markers such as `# ... existing code ...`
stand for code that stays. Edits cover only the replaced and inserted definitions and lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from quicksilver.editing.merge_parts import (
    LineEdit,
    LineScope,
    SnippetItem,
    Unclear,
    content_end,
    indent_of,
    inside_brackets,
    is_bracket,
    is_fragment,
    is_import,
    is_other_overload,
    is_partial,
    is_trusted,
    joined,
    last_before,
    like_import,
    merged_annotations,
    only_place,
    same_definitions,
    same_last_name,
    splits_blocks,
    trimmed,
    usual_gap,
    with_commas,
    with_placeholders,
)
from quicksilver.editing.nesting import is_parseable
from quicksilver.editing.outline import Definition, Outline, outline_of, read_outline
from quicksilver.editing.splice import Segment, Source, is_marker, is_whole_file, plan_change, split_update

# Preprocessor directives, which stay in the first column.
_DIRECTIVE = re.compile(r"#(if|elif|else|endif|ifdef|ifndef|define|region|endregion|pragma)\b")


def merge_by_syntax(original: Sequence[str], update: Sequence[str]) -> list[LineEdit] | None:
    """The edits in file order, or None if the language is unknown or the position of a part is ambiguous."""
    old = outline_of("\n".join(original))
    if old is None or not is_parseable(update):
        return None
    new = read_outline(with_placeholders(update, old.language), old.language)
    if is_whole_file(original, update):
        return None
    is_known = bool(new.definitions) or all(is_import(line) or is_marker(line) for line in update)
    if not is_known or not is_trusted(new, old):
        return None
    try:
        edits = _Merger(original, update, old).merge(new)
    except Unclear:
        return None
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    if old.language.name == "json":
        ordered = with_commas(original, ordered)
    is_disjoint = all(a.end <= b.start for a, b in pairwise(ordered))
    return ordered if is_disjoint else None


@dataclass(slots=True)
class _Cursor:
    """The position in the file after the last anchored item of the snippet."""

    end: int
    # The last anchored item and its counterpart, or None at the start of the scope.
    item: SnippetItem | None = None
    counterpart: Definition | None = None
    has_marker: bool = False
    # Whether new code was inserted after the last anchored item.
    has_new: bool = False


@dataclass(frozen=True, slots=True)
class _Merger:
    original: Sequence[str]
    update: Sequence[str]
    outline: Outline

    def merge(self, snippet: Outline) -> list[LineEdit]:
        file_scope = LineScope(0, len(self.original), self.outline.definitions)
        if self.outline.language.name == "json":
            file_scope = inside_brackets(self.original, file_scope)
        return self._scope(file_scope, LineScope(0, len(self.update), snippet.definitions), is_top=True)

    def _scope(self, old: LineScope, new: LineScope, is_top: bool = False, is_partial: bool = False) -> list[LineEdit]:
        """Merge the items of a scope. Between the items of a partial one, code is omitted without a marker."""
        items = self._items(new)
        matches = self._matches(items, old.definitions, is_top)
        if is_top and not matches and not any(item.is_marker for item in items):
            raise Unclear  # New definitions without any context have no place.
        edits: list[LineEdit] = []
        cursor = _Cursor(old.low, has_marker=is_partial or (is_top and not self._starts_file(items, old)))
        for at, item in enumerate(items):
            match = matches.get(at)
            if item.is_marker:
                cursor.has_marker = True
            elif match is not None:
                edits += self._removed_between(cursor, item, match)
                edits += self._replaced(item, match)
                cursor = _Cursor(max(cursor.end, match.end), item, match, has_marker=is_partial)
            elif item.definition is not None:
                edits.append(self._inserted(items, at, matches, cursor, old))
            else:
                edits += self._lines(items, at, matches, cursor, old)
        return joined(edits)

    def _starts_file(self, items: Sequence[SnippetItem], old: LineScope) -> bool:
        """Whether the snippet begins with the first lines of the file."""
        first = next((line for line in self.original[old.low : old.high] if line.strip()), None)
        return bool(items) and not items[0].is_marker and self.update[items[0].start].rstrip() == (first or "").rstrip()

    def _items(self, scope: LineScope) -> list[SnippetItem]:
        found: list[SnippetItem] = []
        starts = {definition.start: definition for definition in scope.definitions}
        line = scope.low
        while line < scope.high:
            if line in starts:
                found.append(SnippetItem(line, starts[line].end, starts[line]))
                line = starts[line].end
            elif is_marker(self.update[line]):
                found.append(SnippetItem(line, line + 1, is_marker=True))
                line += 1
            else:
                end = line + 1
                while end < scope.high and end not in starts and not is_marker(self.update[end]):
                    end += 1
                found += trimmed(SnippetItem(line, end), self.update)
                line = end
        return found

    def _matches(self, items: Sequence[SnippetItem], olds: Sequence[Definition], is_top: bool) -> dict[int, Definition]:
        found: dict[int, Definition] = {}
        for at, item in enumerate(items):
            if item.definition is None:
                continue
            everywhere = list(self.outline.walk()) if is_top else []
            same = same_definitions(item.definition, everywhere)
            candidates = self._nearest(item.definition, same) or same_definitions(item.definition, olds) or same
            if not candidates and self._has_marker(item):
                candidates = same_last_name(item.definition, everywhere or olds)
            free = [old for old in candidates if all(old is not other for other in found.values())]
            if free:
                found[at] = self._most_similar(item.definition, free)
                if self._may_be_new(item, found[at]):
                    raise Unclear
            elif self._has_marker(item):
                raise Unclear  # A part of an unknown definition is elided.
        return found

    def _nearest(self, new: Definition, olds: Sequence[Definition]) -> list[Definition]:
        """Those with the same header line. Without them, those at the indentation of an indented definition."""
        header = self.update[new.head]
        same = [old for old in olds if self.original[old.head].strip() == header.strip()]
        is_indented = bool(indent_of(header))
        return same or [old for old in olds if is_indented and indent_of(self.original[old.head]) == indent_of(header)]

    def _may_be_new(self, item: SnippetItem, old: Definition) -> bool:
        """Whether a function without markers may be a new overload instead of a changed one."""
        new = item.definition if self.outline.language.has_overloads and not self._has_marker(item) else None
        return new is not None and is_other_overload(new, old, self.update, self.original)

    def _has_marker(self, item: SnippetItem) -> bool:
        return any(is_marker(line) for line in self.update[item.start : item.end])

    def _most_similar(self, new: Definition, olds: Sequence[Definition]) -> Definition:
        """The definition with the most similar header and members. Equal overloads are matched in order."""
        scores = [self._similarity(new, old) for old in olds]
        best = max(scores)
        first = olds[scores.index(best)]
        is_tie = (
            scores.count(best) > 1 and len({id(old) for old in olds} & {id(o) for o in self.outline.definitions}) == 0
        )
        if is_tie and len(olds) > 1:
            raise Unclear
        return first

    def _similarity(self, new: Definition, old: Definition) -> float:
        """The share of common words of the headers, and that of shown members which the old definition has."""
        a, b = (
            Counter(re.findall(r"\w+", " ".join(lines[d.head : max(d.low, d.head + 1)])))
            for lines, d in ((self.update, new), (self.original, old))
        )
        known = {(child.kind, child.name) for child in old.children}
        members = sum((child.kind, child.name) in known for child in new.children) / max(len(new.children), 1)
        return 2 * (a & b).total() / max(a.total() + b.total(), 1) + members

    def _replaced(self, item: SnippetItem, old: Definition) -> list[LineEdit]:
        """The edits that turn the definition of the file into the one of the snippet."""
        assert item.definition is not None
        new = self._with_body(item.definition)
        lines = self._reindented(new.start, new.end, self.original[old.head], self.original[old.start : old.end])
        head = new.head - new.start
        annotations = merged_annotations(lines[:head], self.original[old.start : old.head])
        if not any(is_marker(line) for line in lines):
            if new.kind == "section" and new.end - new.head == 1:
                return []  # The heading shows where the section above it ends.
            if self.outline.language.is_data and is_fragment(new, old, self.update, self.original):
                raise Unclear  # The shown keys, items or sections may be only some of the old ones.
            if not is_partial(new, old, self.update, self.original):
                return [LineEdit(old.start, old.end, (*annotations, *lines[head:]))]
        if old.low >= old.high:
            raise Unclear  # The old definition has no body that a marker could stand for.
        header = self._replaced_header(new, old, lines, annotations)
        if new.children or (old.children and old.kind != "function"):
            old_scope, new_scope = (LineScope(d.low, d.high, d.children) for d in (old, new))
            return header + self._scope(old_scope, new_scope, is_partial=not any(map(is_marker, lines)))
        body = self._merged_lines(old, lines[new.low - new.start : new.high - new.start])
        if body is None:
            return [LineEdit(old.start, old.end, update="\n".join((*annotations, *lines[head:])))]
        return header + body

    def _replaced_header(
        self, new: Definition, old: Definition, lines: Sequence[str], annotations: Sequence[str]
    ) -> list[LineEdit]:
        header = (*annotations, *lines[new.head - new.start : new.low - new.start])
        is_same = list(header) == [line.rstrip() for line in self.original[old.start : old.low]]
        return [] if is_same or any(is_marker(line) for line in header) else [LineEdit(old.start, old.low, header)]

    def _merged_lines(self, old: Definition, lines: Sequence[str]) -> list[LineEdit] | None:
        """Merge a body that has markers line by line. None if a line has no certain place."""
        source = Source("\n".join(self.original[old.low : old.high]) + "\n")
        edits, low = list[LineEdit](), 0
        for segment in split_update("\n".join(lines)):
            change = plan_change(source, segment, low)
            if change.lines is None or change.end is None:
                return None
            new = tuple(line.rstrip("\r\n") for line in change.lines)
            edits.append(LineEdit(old.low + change.start, old.low + change.end, new))
            low = max(low, change.end)
        return edits

    def _removed_between(self, cursor: _Cursor, item: SnippetItem, match: Definition) -> list[LineEdit]:
        """Code between two neighbours of the snippet is removed if both are only context and nothing new is between."""
        if cursor.item is None or cursor.has_marker or cursor.end > match.start or cursor.counterpart is None:
            return []
        between = self.original[cursor.end : match.start]
        if not any(line.strip() for line in between):
            return []
        is_context = self._is_context(cursor.item, cursor.counterpart) and self._is_context(item, match)
        if not is_context or cursor.has_new:
            return []
        if splits_blocks(between):
            raise Unclear
        return [LineEdit(cursor.end, match.start, self._blank_lines(cursor.item.end, item.start))]

    def _is_context(self, item: SnippetItem, old: Definition) -> bool:
        """Whether the snippet repeats the definition unchanged or elides a part of it."""
        lines = [line.rstrip() for line in self._reindented(item.start, item.end, self.original[old.head])]
        return any(map(is_marker, lines)) or lines == [line.rstrip() for line in self.original[old.start : old.end]]

    def _inserted(
        self, items: Sequence[SnippetItem], at: int, matches: dict[int, Definition], cursor: _Cursor, old: LineScope
    ) -> LineEdit:
        """Insert a new definition after the previous item, before the next one, or at an end of the scope."""
        item = items[at]
        following = matches.get(at + 1)
        if cursor.item is not None and not cursor.has_marker:
            anchor = cursor.counterpart or last_before(old.definitions, cursor.end)
            lines = self._reindented(item.start, item.end, self._sample_line(anchor, old))
            blank = self._blank_lines(cursor.item.end, item.start)
            cursor.item, cursor.has_new = item, True
            return LineEdit(cursor.end, cursor.end, (*blank, *lines))
        if following is not None:
            lines = self._reindented(item.start, item.end, self.original[following.head])
            blank = self._blank_lines(item.end, items[at + 1].start)
            return LineEdit(following.start, following.start, (*lines, *blank))
        later = next((matches[i] for i in range(at + 1, len(items)) if i in matches), None)
        lines = self._reindented(item.start, item.end, self._sample_line(later, old))
        if later is not None:
            return LineEdit(later.start, later.start, (*lines, *("",) * usual_gap(old)))
        is_first = not cursor.has_marker and cursor.item is None
        if is_first and old.definitions:
            start = old.definitions[0].start
            return LineEdit(start, start, (*lines, *("",) * usual_gap(old)))
        below = items[at + 1] if at + 1 < len(items) and items[at + 1].is_lines else None
        place = only_place(self.original, self.update[below.start], cursor.end, old) if below else None
        if below is not None and place is not None:
            return LineEdit(place, place, (*lines, *self._blank_lines(item.end, below.start)))
        end = content_end(self.original, cursor.end if not old.definitions else old.low, old.high)
        gap = usual_gap(old)
        if old.high == len(self.original) and old.high - end >= gap > 0:
            end, gap = old.high, 0
        cursor.end, cursor.item, cursor.has_marker = end, item, False
        return LineEdit(end, end, (*("",) * gap, *lines))

    def _lines(
        self, items: Sequence[SnippetItem], at: int, matches: dict[int, Definition], cursor: _Cursor, old: LineScope
    ) -> list[LineEdit]:
        """Place a run of lines that are not definitions, such as imports, fields or statements."""
        item = items[at]
        following = next((matches[i] for i in range(at + 1, len(items)) if i in matches), None)
        high = following.start if following is not None and following.start >= cursor.end else old.high
        region, low = self.original[cursor.end : high], cursor.end
        if self.outline.language.name == "json" and all(map(is_bracket, self.update[item.start : item.end])):
            return []
        if all(map(is_import, self.update[item.start : item.end])):
            return self._imports(old, cursor, item)
        if old.low == 0 and indent_of(self.update[item.start]):
            raise Unclear  # The run begins inside a definition that the snippet does not show.
        heads = [other.definition.head for other in items if other.definition is not None]
        if heads and len(indent_of(self.update[item.start])) > len(indent_of(self.update[heads[0]])):
            raise Unclear  # The run is indented deeper than the definitions of its scope.
        like = self._sample_line(None, old, line=self.update[item.start])
        lines = tuple(self._reindented(item.start, item.end, like))
        is_open_below = at + 1 >= len(items) or items[at + 1].is_marker
        placed = self._placed(region, Segment(lines, cursor.has_marker, is_open_below))
        if placed is not None:
            cursor.end, cursor.item, cursor.counterpart, cursor.has_marker = low + placed.end, item, None, False
            return [LineEdit(low + placed.start, low + placed.end, placed.lines)] if placed.lines else []
        if cursor.item is not None and not cursor.has_marker:
            blank = self._blank_lines(cursor.item.end, item.start)
            cursor.item, cursor.has_new = item, True
            return [LineEdit(cursor.end, cursor.end, (*blank, *lines))]
        if at + 1 < len(items) and at + 1 in matches:
            start = matches[at + 1].start
            blank = self._blank_lines(item.end, items[at + 1].start)
            return [LineEdit(start, start, (*lines, *blank))]
        raise Unclear

    def _placed(self, region: Sequence[str], segment: Segment) -> LineEdit | None:
        """The change of a run of lines in `region`, by lines that both have in common."""
        known = {line.rstrip() for line in region if line.strip()}
        if not any(line.rstrip() in known for line in segment.lines if line.strip()):
            return None
        change = plan_change(Source("\n".join(region) + "\n"), segment, 0)
        if change.lines is None or change.end is None:
            raise Unclear
        lines = tuple(line.rstrip("\r\n") for line in change.lines)
        is_same = list(lines) == [line.rstrip() for line in region[change.start : change.end]]
        return LineEdit(change.start, change.end, () if is_same else lines)

    def _imports(self, old: LineScope, cursor: _Cursor, item: SnippetItem) -> list[LineEdit]:
        """Insert new imports after the import before them in the snippet, else after the last one."""
        first = old.definitions[0].start if old.definitions else old.high
        known = {self.original[i].rstrip(): i for i in range(old.low, first) if self.original[i].strip()}
        imports = [i for i in known.values() if is_import(self.original[i])]
        if not imports:
            raise Unclear
        like = like_import(self.update[item.start : item.end], [self.original[i] for i in imports])
        lines = self._reindented(item.start, item.end, like)
        anchors = [known[line.rstrip()] for line in lines if line.rstrip() in known]
        at = (anchors[0] if lines[0].rstrip() not in known else anchors[0] + 1) if anchors else imports[-1] + 1
        edits: list[LineEdit] = []
        for line in lines:
            if line.rstrip() in known:
                at = known[line.rstrip()] + 1
            elif line.strip():
                edits.append(LineEdit(at, at, (line,)))
        cursor.end, cursor.item, cursor.counterpart, cursor.has_marker = max(cursor.end, at), item, None, False
        return edits

    def _with_body(self, new: Definition) -> Definition:
        """A definition whose body is only a marker has no body for the parser. The body then starts at the marker."""
        markers = [i for i in range(new.head, new.end) if is_marker(self.update[i])]
        if not markers or new.low <= markers[0]:
            return new
        high = new.end - 1 if re.fullmatch(r"\s*(end|[})\];,]+)\s*", self.update[new.end - 1]) else new.end
        return replace(new, low=markers[0], high=max(high, markers[-1] + 1))

    def _reindented(self, start: int, end: int, like: str, old: Sequence[str] = ()) -> list[str]:
        """Lines of the snippet, shifted to the indentation of the line `like` of the file. A line that is in `old` only
        without the shift, such as one inside a multi-line string, is not shifted."""
        lines = [line.rstrip("\r\n") for line in self.update[start:end]]
        # The first line sets the indentation. Lines to its left, such as `#if` or text of a string, are not shifted.
        common = indent_of(next((line for line in lines if line.strip()), ""))
        wanted = indent_of(like)
        if common == wanted:
            return lines
        known = set(old)
        shifted: list[str] = []
        for line in lines:
            is_fixed = not line or not line.startswith(common) or _DIRECTIVE.match(line) is not None
            moved = line if is_fixed else wanted + line[len(common) :]
            shifted.append(line if line in known and moved not in known else moved)
        return shifted

    def _sample_line(self, near: Definition | None, old: LineScope, line: str = "") -> str:
        """A line of the file with the indentation of the scope."""
        if near is not None:
            return self.original[near.head]
        if heads := [self.original[definition.head] for definition in old.definitions]:
            return min(reversed(heads), key=lambda head: len(indent_of(head)))
        return next((text for text in self.original[old.low : old.high] if text.strip()), line)

    def _blank_lines(self, start: int, end: int) -> tuple[str, ...]:
        """The blank lines between two items of the snippet, with their space."""
        return tuple(line for line in self.update[start:end] if not line.strip())
