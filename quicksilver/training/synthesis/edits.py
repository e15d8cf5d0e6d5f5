"""Next-edit rows from real function edits: some hunks are history, the next one is to be predicted.

Three kinds: edits the history implies (a renamed thing appears again), renames made by rule in real functions, and
echoes, where the region is already right and must come back unchanged.
"""

from __future__ import annotations

import difflib
import keyword
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quicksilver.editing.prompts import EditRequest
from quicksilver.training.rows import EditRow

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ABOVE, BELOW = 4, 9
_NEW_NAMES = [
    "value",
    "item",
    "data",
    "result",
    "current",
    "entry",
    "source",
    "target",
    "name",
    "options",
    "config",
    "text",
    "index",
    "total",
    "payload",
]


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines [start, end) of the old text become `new`."""

    start: int
    end: int
    old: tuple[str, ...]
    new: tuple[str, ...]


def edit_rows(edit: Mapping[str, Any], rng: random.Random) -> Iterator[EditRow]:
    """Rows from one before/after pair of a function."""
    old, new = edit["a"].splitlines(), edit["b"].splitlines()
    if not 3 <= len(old) <= 80 or not 3 <= len(new) <= 80:
        return
    found = hunks(old, new)
    path = str(edit["f"])
    if len(found) >= 2 and (row := _split_row(old, found, path, rng)):
        yield row
    if rng.random() < 0.85 and (row := _rename_row(new, path, rng)):
        yield row
    if found and rng.random() < 0.33:
        yield _echo_row(old, new, found, path, rng)


def hunks(old: list[str], new: list[str]) -> list[Hunk]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        Hunk(i1, i2, tuple(old[i1:i2]), tuple(new[j1:j2]))
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def is_implied(history: list[Hunk], target: Hunk) -> bool:
    """Whether words the history replaced are replaced again in the target."""
    gone, come = _changed_words(history)
    gone_here, come_here = _changed_words([target])
    return bool(come & come_here) and bool(gone & gone_here or not gone)


def _changed_words(changed: list[Hunk]) -> tuple[set[str], set[str]]:
    old = {word for hunk in changed for line in hunk.old for word in _WORD.findall(line)}
    new = {word for hunk in changed for line in hunk.new for word in _WORD.findall(line)}
    return old - new, new - old


def diff_texts(path: str, changed: list[Hunk]) -> tuple[str, ...]:
    """Unified diffs without context, oldest first."""
    parts = []
    for hunk in changed:
        head = f"@@ -{hunk.start + 1},{len(hunk.old)} +{hunk.start + 1},{len(hunk.new)} @@"
        lines = [head, *(f"-{line}" for line in hunk.old), *(f"+{line}" for line in hunk.new)]
        parts.append(f"--- {path}\n+++ {path}\n" + "\n".join(lines))
    return tuple(parts)


def _split_row(old: list[str], found: list[Hunk], path: str, rng: random.Random) -> EditRow | None:
    num_done = rng.randint(1, len(found) - 1)
    history, target = found[:num_done], found[num_done]
    if not is_implied(history, target) and rng.random() < 0.75:
        return None
    lines, shift = _apply(old, history)
    start, end = target.start + shift, target.end + shift
    region_end = min(len(lines), max(end, start) + rng.randint(2, BELOW))
    later = [hunk for hunk in found[num_done + 1 :] if hunk.end + shift <= region_end]
    changed, _ = _apply(lines[:region_end], [_moved(hunk, shift) for hunk in (target, *later)])
    region_start = max(0, start - rng.randint(1, ABOVE))
    answer = changed[region_start:]
    return _row(path, lines, (region_start, region_end), history[-3:], answer, rng)


def _rename_row(lines: list[str], path: str, rng: random.Random) -> EditRow | None:
    """A name is changed where it first stands; the other places in the region follow."""
    counts: dict[str, int] = {}
    for line in lines:
        for word in set(_WORD.findall(line)):
            counts[word] = counts.get(word, 0) + 1
    skip = {"self", "cls", "True", "False", "None"}
    names = sorted(w for w, n in counts.items() if n >= 3 and len(w) > 1 and not keyword.iskeyword(w) and w not in skip)
    if not names:
        return None
    old_name = rng.choice(names)
    new_name = _new_name(old_name, set(counts), rng)
    places = [i for i, line in enumerate(lines) if re.search(rf"\b{old_name}\b", line)]
    if len(places) < 2:
        return None
    renamed = [re.sub(rf"\b{old_name}\b", new_name, line) for line in lines]
    first = places[0]
    half = [*lines[:first], renamed[first], *lines[first + 1 :]]
    region_start = max(0, places[1] - rng.randint(0, ABOVE))
    region_end = min(len(lines), places[1] + rng.randint(3, BELOW + 4))
    history = [Hunk(first, first + 1, (lines[first],), (renamed[first],))]
    region_start = max(region_start, first + 1) if rng.random() < 0.7 else region_start
    return _row(path, half, (region_start, region_end), history, renamed[region_start:region_end], rng)


def _new_name(old: str, taken: set[str], rng: random.Random) -> str:
    other = rng.choice(_NEW_NAMES)
    forms = [f"{old}_{other}", f"{other}_{old}", other, f"new_{old}", f"{old}s", f"_{old}", f"{old}_"]
    free = [form for form in forms if form not in taken]
    return rng.choice(free)


def _echo_row(old: list[str], new: list[str], found: list[Hunk], path: str, rng: random.Random) -> EditRow:
    """All is done: the region comes back as it is."""
    middle = min(len(new) - 1, found[-1].start)
    start = max(0, middle - rng.randint(0, ABOVE + 3))
    end = min(len(new), middle + rng.randint(3, BELOW))
    span = (start, max(end, start + 1))
    return _row(path, new, span, found[-3:], new[slice(*span)], rng)


def _apply(lines: list[str], changed: list[Hunk]) -> tuple[list[str], int]:
    """Lines with hunks applied (given in order of the lines' own numbering), and by how many lines they grew."""
    result, shift = list(lines), 0
    for hunk in changed:
        result[hunk.start + shift : hunk.end + shift] = hunk.new
        shift += len(hunk.new) - len(hunk.old)
    return result, shift


def _moved(hunk: Hunk, shift: int) -> Hunk:
    return Hunk(hunk.start + shift, hunk.end + shift, hunk.old, hunk.new)


def _row(
    path: str, lines: list[str], span: tuple[int, int], history: list[Hunk], answer: list[str], rng: random.Random
) -> EditRow:
    start, end = span
    before, region, after = lines[:start], lines[start:end], lines[end:]
    num_chars = len("\n".join(region))
    request = EditRequest(
        path=path,
        before="".join(f"{line}\n" for line in before),
        region="\n".join(region),
        after="".join(f"\n{line}" for line in after),
        cursor=rng.randint(0, num_chars) if rng.random() < 0.7 else None,
        history=diff_texts(path, history),
    )
    return EditRow(request, "\n".join(answer))
