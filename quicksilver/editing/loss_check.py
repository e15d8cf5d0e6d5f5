"""Checks that a merge lost no code: lines that the update neither shows nor replaces must still be in their place.

A merge by syntax keeps them by construction. A merge by lines and a model's rewriting are checked here.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from quicksilver.editing.languages import guess_languages
from quicksilver.editing.outline import Definition, Outline, best_outline, read_outline
from quicksilver.editing.splice import is_alike, is_marker
from quicksilver.editing.syntax_merge import MAX_CHARS, with_placeholders

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
    replaced = set(_replaced_names(outlines[1], shown)) if outlines else set()
    touched = _lines_of(outlines[0], replaced) if outlines else set()
    explained, lost = Counter[str](), list[str]()
    for hunk in _hunks(old, new):
        removed = [old[i] for i in range(hunk.start, hunk.end) if old[i] and i not in touched]
        if _is_between_shown_lines(old, hunk, shown) or _is_changed(removed, hunk.added):
            explained.update(removed)
        else:
            lost += removed
    if lost or outlines is None:
        return lost
    kept = [each for each in outlines[0].walk() if not each.children and _name(each) not in replaced]
    return list(_moved_lines(_texts(kept, old), _texts(outlines[2].walk(), new), explained))


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[_Hunk]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, low, high, new_low, new_high in matcher.get_opcodes():
        if tag in ("delete", "replace"):
            yield _Hunk(low, high, new[new_low:new_high])


def _is_between_shown_lines(old: Sequence[str], hunk: _Hunk, shown: Sequence[str]) -> bool:
    """Whether the update shows the lines above and below the hunk without a marker between them. An end of the file
    counts as shown at the same end of the update."""
    above = next((line for line in reversed(old[: hunk.start]) if line), None)
    below = next((line for line in old[hunk.end :] if line), None)
    starts = [i for i, line in enumerate(shown) if line == above] if above is not None else [-1]
    for start in starts:
        for line in shown[start + 1 :]:
            if is_marker(line):
                break
            if line == below:
                return True
        else:
            if below is None:
                return True
    return False


def _is_changed(removed: Sequence[str], added: Sequence[str]) -> bool:
    """Whether every removed line has a similar new line."""
    left = [line for line in added if line]
    for line in removed:
        match = next((new for new in left if is_alike(new, line)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _outlines(original: str, update: str, merged: str) -> tuple[Outline, Outline, Outline] | None:
    if len(original) > MAX_CHARS:
        return None
    old = best_outline(original.split("\n"), guess_languages(original))
    if old is None:
        return None
    language = old.language
    shown = read_outline(with_placeholders(update.split("\n"), language), language)
    return old, shown, read_outline(merged.split("\n"), language)


def _replaced_names(shown: Outline, lines: Sequence[str]) -> Iterator[_Name]:
    """Definitions that the update shows whole, without a marker: they replace those of the file."""
    for definition in shown.walk():
        if not any(map(is_marker, lines[definition.start : definition.end])):
            yield _name(definition)


def _lines_of(outline: Outline, names: set[_Name]) -> set[int]:
    found = (definition for definition in outline.walk() if _name(definition) in names)
    return set(chain.from_iterable(range(definition.start, definition.end) for definition in found))


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
