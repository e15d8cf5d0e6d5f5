"""One segment of an update snippet -> the change it makes to the file, or the span that a model must rewrite.

By the convention of such snippets, a marker stands for unchanged code, and a segment between markers is complete from
its first to its last line. A missing marker at either end is assumed, so that no code is lost. A change that leaves
brackets unbalanced or drops many lines is left to the model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from quicksilver.editing.align import Placement, is_distinctive, place
from quicksilver.editing.line_diff import differences

_DOTS = r"(?:\.{3,}|…)"
COMMENT = r"(?://+|\#+|--+|;+|%+|/\*+|<!--|\{/\*|\(\*|REM\b)"
_OMITTED = r"\b(?:existing|rest|remaining|remains|unchanged|same|other|previous|omitted)\b"
_MARKER = re.compile(
    rf"""\s*(?:{COMMENT}\s*{_DOTS}(?:\W*|.*{_OMITTED}.*|.*{_DOTS}\W*)
         |{COMMENT}.*\b(?:existing|rest\ of|remaining|unchanged|omitted)\b.*{_DOTS}\W*
         |{_DOTS}\s+.*{_OMITTED}.*)""",
    re.IGNORECASE | re.VERBOSE,
)
_LONGEST_MARKER = 200
_IMPORT = re.compile(r"(import|from|use|using|#include|require)\b")
_CLOSER = re.compile(r"\s*(?:[)\]};,]+\s*(?://.*|/\*.*)?|end\b[\s);]*)")
_WORD = re.compile(r"\w+")
# Share of common words from which a new line may replace an old one.
_ALIKE = 0.6
_NEAR = 3
_FEW_LINES = 8


@dataclass(frozen=True, slots=True)
class Segment:
    """Lines between markers, and whether there is a marker above or below."""

    lines: tuple[str, ...]
    is_open_above: bool
    is_open_below: bool


@dataclass(frozen=True, slots=True)
class Change:
    """`lines`, with their line ends, replace `start:end` of the file.

    Without `lines` the model must write them; without `end` the end of the span is unknown.
    """

    start: int
    end: int | None
    lines: tuple[str, ...] | None = None


class Source:
    """A file as lines: `lines` byte for byte, `keys` without trailing space."""

    def __init__(self, text: str) -> None:
        self.lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        self.keys = [line.rstrip() for line in self.lines]
        self._eol = "\r\n" if "\r\n" in text else "\n"

    def new(self, lines: Sequence[str]) -> list[str]:
        """Lines of the update with this file's line ends."""
        return [line.rstrip("\r\n") + self._eol for line in lines]


def is_marker(line: str) -> bool:
    """Whether the line stands for code that stays, such as `# ... existing code ...`."""
    if len(line) > _LONGEST_MARKER or ("..." not in line and "…" not in line):
        return False
    return _MARKER.fullmatch(line.rstrip("\r\n")) is not None


def is_closer(line: str) -> bool:
    """Whether the line only ends blocks, such as `});`, `end` or `}  // namespace a`."""
    return _CLOSER.fullmatch(line) is not None


def is_whole_file(original: Sequence[str], update: Sequence[str]) -> bool:
    """No marker, and most of the file with both of its ends is repeated: the update is the new file."""
    lines, shown = ([line.strip() for line in text if line.strip()] for text in (original, update))
    old, new = Counter(lines), Counter(shown)
    if any(map(is_marker, update)) or 2 * (old & new).total() <= old.total():
        return False
    removed = {i for each in differences(lines, shown) for i in range(each.start, each.end)}
    gone = old - new  # Of equal lines, the one at the end may be the one that is not shown.
    kept = [(line, i not in removed and not gone[line]) for i, line in enumerate(lines) if is_distinctive(line)]
    words = list(filter(is_distinctive, shown))
    return _shows_start(kept[:2], words[:1]) and _shows_start(kept[:-3:-1], words[-1:])


def _shows_start(kept: Sequence[tuple[str, bool]], shown: Sequence[str]) -> bool:
    """Whether the update repeats the first line, or has others above the second one. An update that begins with the
    second line is a snippet, unless that line is an import. Lines without words, such as a brace, begin or end any
    function and do not count."""
    if not kept or kept[0][1]:
        return True
    return any(is_kept and (line not in shown or _IMPORT.match(line) is not None) for line, is_kept in kept[1:])


def split_update(update: str) -> list[Segment]:
    segments: list[list[str]] = [[]]
    for line in update.rstrip("\r\n").split("\n"):
        if is_marker(line):
            segments.append([])
        else:
            segments[-1].append(line)
    last = len(segments) - 1
    found = (Segment(tuple(lines), at > 0, at < last) for at, lines in enumerate(segments))
    return [segment for segment in found if not _is_empty(segment)]


def _is_empty(segment: Segment) -> bool:
    """Blank, or only the ends of blocks whose last lines a marker stands for."""
    return all(not line.strip() or (segment.is_open_above and is_closer(line)) for line in segment.lines)


def plan_change(source: Source, segment: Segment, low: int) -> Change:
    """The change that `segment` makes to the lines from `low` on."""
    placement = place([line.rstrip() for line in segment.lines], source.keys, low)
    if placement is None:
        return _plan_unplaced(source, segment, low)
    if placement.is_ambiguous:
        return Change(low, None)
    return _plan_placed(source, segment, placement, low)


def balance(text: str) -> tuple[int, int, int]:
    """Brackets opened and not closed, of each kind."""
    round_, square, curly = (text.count(a) - text.count(b) for a, b in ("()", "[]", "{}"))
    return round_, square, curly


def _plan_unplaced(source: Source, segment: Segment, low: int) -> Change:
    """New code only: its position is certain only at an end of the file that the snippet shows."""
    lines = segment.lines
    is_top = low == 0 and not segment.is_open_above and segment.is_open_below
    is_bottom = segment.is_open_above and not segment.is_open_below
    known = set(source.keys)
    heading = [line for line in lines if line.strip() and line.rstrip() not in known][:1]
    if is_top == is_bottom or not heading or _any_alike(heading, source.keys):
        return Change(low, None)
    at = 0 if is_top else len(source.lines)
    return Change(at, at, tuple(source.new(lines)))


def _plan_placed(source: Source, segment: Segment, placement: Placement, low: int) -> Change:
    if _is_whole_file(source, segment, placement):
        end = max(i for i, key in enumerate(source.keys) if key) + 1  # Blank lines at the end of the file stay.
        return Change(0, end, tuple(_interleave(source, segment, _up_to(placement, end))))
    (i_first, j_first), (i_last, j_last) = placement.first, placement.last
    head, tail = segment.lines[:i_first], segment.lines[i_last + 1 :]
    above, below = source.keys[low:j_first][::-1], source.keys[j_last + 1 :]
    num_above, num_below = _num_replaced(head[::-1], above), _num_replaced(tail, below)
    start, end = j_first - num_above, j_last + 1 + num_below
    new_head = head[: len(head) - num_above]
    is_certain = (
        _fits_above(new_head, above[num_above:], source.keys[start : j_last + 1])
        and not (low and segment.is_open_above and any(new_head) and not any(above[num_above:]))
        and _fits_below(tail[num_below:], below[num_below:], source.keys[j_first : j_last + 1])
        and _has_firm_edges(source, segment, placement)
        and j_last - j_first < len(segment.lines) + max(_FEW_LINES, len(segment.lines))
    )
    if not is_certain:
        return Change(max(low, start - _NEAR), _block_end(source.keys, end, min(_indents(segment.lines))))
    inner = Segment(segment.lines[i_first : i_last + 1], is_open_above=True, is_open_below=True)
    shifted = Placement(tuple((i - i_first, j) for i, j in placement.pairs), is_ambiguous=False)
    body = _interleave(source, inner, shifted)
    return Change(start, end, (*source.new(_unless_blank(head)), *body, *source.new(_unless_blank(tail))))


def _is_whole_file(source: Source, segment: Segment, placement: Placement) -> bool:
    """The update has no marker and repeats most of the file: it is the new file."""
    is_most = 2 * len(placement.pairs) > len(source.lines) and is_whole_file(source.keys, segment.lines)
    return is_most and not segment.is_open_above and not segment.is_open_below


def _up_to(placement: Placement, end: int) -> Placement:
    return Placement(tuple((i, j) for i, j in placement.pairs if j < end), placement.is_ambiguous)


def _block_end(keys: Sequence[str], at: int, indent: int) -> int:
    """The first line from `at` on that begins a new block at `indent`: the model rewrites whole blocks."""
    for j in range(at, len(keys)):
        if keys[j].strip() and _indents([keys[j]])[0] <= indent and not re.fullmatch(r"\W*|end\b.*", keys[j].strip()):
            return j
    return len(keys)


def _interleave(source: Source, segment: Segment, placement: Placement) -> list[str]:
    """Lines of the file where the snippet repeats them, otherwise lines of the snippet."""
    out: list[str] = []
    done = 0
    for i, j in placement.pairs:
        out += source.new(segment.lines[done:i])
        out.append(source.lines[j])
        done = i + 1
    return out + source.new(segment.lines[done:])


def _num_replaced(new: Sequence[str], old: Sequence[str]) -> int:
    """How many lines next to an anchor are changed old lines."""
    pairs = zip(new, old, strict=False)
    return next((n for n, pair in enumerate(pairs) if not is_alike(*pair)), min(len(new), len(old)))


def _fits_above(new: Sequence[str], old: Sequence[str], anchored: Sequence[str]) -> bool:
    """Whether the lines above the first anchor are new: the old lines there end a deeper block, or there are none. The
    anchored lines may not become the body of a new block."""
    indents, old_indents = _indents(new), _indents(old)
    is_outside = not indents or _indents(anchored)[0] <= indents[-1]
    return not indents or (is_outside and _is_new(new, old) and (not old_indents or old_indents[0] > indents[0]))


def _fits_below(new: Sequence[str], old: Sequence[str], anchored: Sequence[str]) -> bool:
    """The same below the last anchor: the lines end its block, or follow the block that it ends."""
    indents, old_indents = _indents(new), _indents(old)
    if not indents:
        return True
    ends_block = not old_indents or old_indents[0] < indents[0] or old_indents[0] <= indents[0] < _indents(anchored)[-1]
    return ends_block and _is_new(new, old)


def _is_new(new: Sequence[str], near: Sequence[str]) -> bool:
    """Brackets that are opened and closed within the lines, and first and last lines unlike the old lines nearby."""
    ends = {*new[:_NEAR], *new[-_NEAR:]}
    is_closed = balance("\n".join(new)) == (0, 0, 0) and not is_closer(next(filter(str.strip, new)))
    return is_closed and not _any_alike(sorted(ends), near[: 2 * _NEAR])


def _indents(lines: Sequence[str]) -> list[int]:
    return [len(line) - len(line.lstrip()) for line in lines if line.strip()]


def _has_firm_edges(source: Source, segment: Segment, placement: Placement) -> bool:
    """A blank line marks the end of a segment only if the lines before it are new or their number is unchanged."""
    pairs = placement.pairs
    for (i, j), (edge_i, edge_j) in (pairs[:2][::-1], pairs[-2:]) if len(pairs) > 1 else ():
        if segment.lines[edge_i].strip() or abs(edge_i - i) == abs(edge_j - j):
            continue
        new = segment.lines[min(i, edge_i) + 1 : max(i, edge_i)]
        beyond = source.keys[edge_j + 1 :] if edge_j > j else source.keys[:edge_j][::-1]
        if abs(edge_j - j) > 1 or _any_alike(new[-_NEAR:], beyond[: 2 * _NEAR]):
            return False
    return True


def _any_alike(new: Sequence[str], old: Sequence[str]) -> bool:
    return any(is_alike(a, b) for a in new for b in old)


def is_alike(new: str, old: str) -> bool:
    """Whether one line may be a changed form of the other. Words are compared, since short lines share most letters."""
    a, b = Counter(_WORD.findall(new)), Counter(_WORD.findall(old))
    total = a.total() + b.total()
    return total > 0 and 2 * (a & b).total() >= _ALIKE * total


def _unless_blank(lines: Sequence[str]) -> Sequence[str]:
    return lines if any(line.strip() for line in lines) else ()
