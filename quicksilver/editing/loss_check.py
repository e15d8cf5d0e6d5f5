"""Checks that a merge lost no code: lines that the update neither shows nor replaces must still be in their place.

Merges by syntax, merges by lines and a model's rewriting are all checked here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise

from quicksilver.editing.align import is_distinctive
from quicksilver.editing.line_diff import differences
from quicksilver.editing.merge_parts import is_partial, is_trusted, with_placeholders
from quicksilver.editing.nesting import is_parseable
from quicksilver.editing.outline import Definition, Outline, is_decorator, outline_of, read_outline
from quicksilver.editing.splice import is_alike, is_marker, is_whole_file

# A hunk with more pairs of removed and added lines than this is not searched for similar lines.
_MAX_PAIRS = 1 << 14
_MAX_SHIFT = 16
_Name = tuple[str, str]  # kind and last part of the name


@dataclass(frozen=True, slots=True)
class _Hunk:
    """Lines `[start, end)` of the original are not in the result; `added` are in their place."""

    start: int
    end: int
    added: Sequence[str]


def lost_lines(original: str, update: str, merged: str) -> list[str]:
    """Lines of the original that the result lost or moved into another definition. Indentation is not compared."""
    old, shown, new = ([line.strip() for line in text.split("\n")] for text in (original, update, merged))
    outlines = _outlines(original, update, merged)
    is_readable = outlines is not None and is_trusted(outlines[1], outlines[0])
    replaced = set(_replaced_names(*outlines[:2], old, shown)) if outlines and is_readable else set()
    touched = _touched_lines(*outlines[:2], replaced, old, shown) if outlines and is_readable else set()
    explained, lost = Counter[str](), list[str]()
    segments = _segments(old, shown, new)
    decorated = _decorated_lines(outlines[0], old) if outlines else {}
    for hunk in (_shifted(each, old, touched) for each in _hunks(old, new)):
        lines = [i for i in range(hunk.start, hunk.end) if old[i] and i not in touched]
        removed = [old[i] for i in lines]
        has_decorator = any(decorated.get(i, hunk.start) not in range(hunk.start, hunk.end) for i in lines)
        is_removable = not has_decorator and _is_between_shown_lines(old, hunk, segments)
        if is_removable or _is_changed(removed, hunk.added):
            explained.update(old[hunk.start : hunk.end])
        else:
            lost += removed
    if lost or outlines is None:
        return lost
    kept = [each for each in outlines[0].walk() if not each.children and _name(each) not in replaced]
    return list(_moved_lines(_texts(kept, old), _texts(outlines[2].walk(), new), explained))


def adds_errors(original: str, update: str, merged: str) -> bool:
    """Whether the result has more syntax errors than the original and the update together. Elided members of JSON are
    errors of the update only."""
    outlines = _outlines(original, update, merged)
    if outlines is None:
        return False
    old, shown, new = outlines
    return new.num_errors > old.num_errors + (0 if old.language.name == "json" else shown.num_errors)


def removed_lines(original: str, merged: str) -> set[int]:
    """Lines of the definitions that the result does not have."""
    outlines = _outlines(original, "", merged)
    if outlines is None:
        return set()
    names = set(map(_name, outlines[2].walk()))
    return {i for each in outlines[0].walk() if _name(each) not in names for i in range(each.start, each.end)}


def has_new_marker(original: str, merged: str) -> bool:
    """Whether the result has a marker, such as `# ... existing code ...`, that the original does not have."""
    old, new = (Counter(line.strip() for line in text.split("\n") if is_marker(line)) for text in (original, merged))
    return bool(new - old)


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[_Hunk]:
    for each in differences(old, new):
        if each.start < each.end:
            yield _Hunk(each.start, each.end, new[each.new_start : each.new_end])


def _shifted(hunk: _Hunk, old: Sequence[str], touched: Set[int]) -> _Hunk:
    """A removal that may begin some lines earlier with the same result, such as at the equal decorator above, is moved
    to where the update allows the most of it."""
    places, start, end = [hunk], hunk.start, hunk.end
    while not hunk.added and start and old[start - 1] == old[end - 1] and len(places) < _MAX_SHIFT:
        start, end = start - 1, end - 1
        places.append(_Hunk(start, end, hunk.added))
    return min(places, key=lambda each: sum(bool(old[i]) and i not in touched for i in range(each.start, each.end)))


class _Segment:
    """Lines of the update between two markers: the first and the last position of each. None is an end of the file,
    which only an update that is the whole new file shows."""

    def __init__(self, lines: Sequence[str], left_out: Set[str], *, has_ends: bool) -> None:
        self.first: dict[str | None, int] = {None: -1} if has_ends else {}
        self.last: dict[str | None, int] = {None: len(lines)} if has_ends else {}
        for at, line in enumerate(lines):
            if line not in left_out:
                self.first.setdefault(line, at)
                self.last[line] = at

    def shows(self, above: str | None, below: str | None) -> bool:
        return above in self.first and below in self.last and self.first[above] < self.last[below]


def _segments(old: Sequence[str], shown: Sequence[str], new: Sequence[str]) -> list[_Segment]:
    """Lines that occur more often in the result than in the original may be new ones, which show no position."""
    added = {line for line in Counter(new) - Counter(old) if is_distinctive(line)}
    marks = [-1, *(i for i, line in enumerate(shown) if is_marker(line)), len(shown)]
    is_whole = is_whole_file(old, shown)
    return [_Segment(shown[low + 1 : high], added, has_ends=is_whole) for low, high in pairwise(marks)]


def _is_between_shown_lines(old: Sequence[str], hunk: _Hunk, segments: Sequence[_Segment]) -> bool:
    """Whether the update shows the lines above and below the hunk without a marker between them."""
    above = next((old[i] for i in range(hunk.start - 1, -1, -1) if old[i]), None)
    below = next((old[i] for i in range(hunk.end, len(old)) if old[i]), None)
    return any(segment.shows(above, below) for segment in segments)


def _decorated_lines(outline: Outline, lines: Sequence[str]) -> dict[int, int]:
    """The decorators of the file, each with the header below it. A snippet that shows only the header keeps them."""
    return {line: each.head for each in outline.walk() for line in _decorators(each, lines)}


def _is_changed(removed: Sequence[str], added: Sequence[str]) -> bool:
    """Whether every removed line has a similar new line, or the same one with or without a comma at its end."""
    if len(removed) * len(added) > _MAX_PAIRS:
        return False
    left = [line for line in added if line]
    for line in removed:
        match = next((new for new in left if is_alike(new, line) or new.rstrip(",") == line.rstrip(",")), None)
        if match is None:
            return False
        left.remove(match)
    return True


@lru_cache(maxsize=2)
def _outlines(original: str, update: str, merged: str) -> tuple[Outline, Outline, Outline] | None:
    texts = (text.removesuffix("\n") for text in (original, update, merged))
    file, snippet, result = ([line.rstrip() for line in text.split("\n")] for text in texts)
    old = outline_of("\n".join(file))
    if old is None or not is_parseable(snippet) or not is_parseable(result):
        return None
    shown = read_outline(with_placeholders(snippet, old.language), old.language)
    return old, shown, read_outline(result, old.language)


def _replaced_names(old: Outline, shown: Outline, old_lines: Sequence[str], lines: Sequence[str]) -> Iterator[_Name]:
    """Definitions that the update shows whole, without a marker: they replace those of the file."""
    places: dict[_Name, list[Definition]] = {}
    for each in old.walk():
        places.setdefault(_name(each), []).append(each)
    for each in shown.walk():
        has_marker = any(map(is_marker, lines[each.start : each.end]))
        if not has_marker and not any(
            is_partial(each, other, lines, old_lines) for other in places.get(_name(each), ())
        ):
            yield _name(each)


def _touched_lines(
    old: Outline, shown: Outline, replaced: set[_Name], old_lines: Sequence[str], lines: Sequence[str]
) -> set[int]:
    """Lines that the update may change: replaced definitions, headers that it shows, and removed definitions.
    Decorators belong to the header only if the update shows decorators too."""
    headers = {_name(each): bool(_decorators(each, lines)) for each in shown.walk() if _name(each) not in replaced}
    touched = set(chain.from_iterable(_removed_spans(old, shown, old_lines, lines)))
    for each in old.walk():
        if _name(each) in replaced:
            touched.update(range(each.start, each.end))
        elif _name(each) in headers:
            kept = () if headers[_name(each)] else _decorators(each, old_lines)
            touched.update(set(range(each.start, each.low)).difference(kept))
    return touched


def _decorators(definition: Definition, lines: Sequence[str]) -> list[int]:
    return [i for i in range(definition.start, definition.head) if is_decorator(lines[i])]


def _removed_spans(old: Outline, shown: Outline, old_lines: Sequence[str], lines: Sequence[str]) -> Iterator[range]:
    """Lines of the file between two definitions that the update shows as neighbours. Both must be context: unchanged
    or elided."""
    places: dict[_Name, list[tuple[int, Definition]]] = {}
    for number, group in enumerate(_groups(old)):
        for each in group:
            places.setdefault(_name(each), []).append((number, each))
    for a, b in chain.from_iterable(pairwise(group) for group in _groups(shown)):
        if any(lines[a.end : b.start]):
            continue
        for number, first in places.get(_name(a), ()):
            for other, last in places.get(_name(b), ()):
                is_context = _is_context(a, first, lines, old_lines) and _is_context(b, last, lines, old_lines)
                if number == other and first.end <= last.start and is_context:
                    yield range(first.end, last.start)


def _groups(outline: Outline) -> list[Sequence[Definition]]:
    """The definitions of each scope."""
    return [outline.definitions, *(each.children for each in outline.walk())]


def _is_context(shown: Definition, old: Definition, lines: Sequence[str], old_lines: Sequence[str]) -> bool:
    text = lines[shown.head : shown.end]
    return any(map(is_marker, text)) or list(text) == list(old_lines[old.head : old.end])


def _moved_lines(
    old: dict[_Name, Counter[str]], new: dict[_Name, Counter[str]], explained: Counter[str]
) -> Iterator[str]:
    """Lines that were in a definition and are not in the definition of that name, or in any one if it was renamed."""
    for name, lines in old.items():
        wanted = lines - explained
        missing = [wanted - found for found in ([new[name]] if name in new else new.values())]
        if wanted and all(missing):
            yield from min(missing, key=lambda left: left.total(), default=wanted)


def _name(definition: Definition) -> _Name:
    return definition.kind, definition.name.split(".")[-1]


def _texts(definitions: Iterable[Definition], lines: Sequence[str]) -> dict[_Name, Counter[str]]:
    """The lines of all definitions of a name."""
    found: dict[_Name, Counter[str]] = {}
    for definition in definitions:
        text = (line for line in lines[definition.head : definition.end] if line)
        found.setdefault(_name(definition), Counter()).update(text)
    return found
