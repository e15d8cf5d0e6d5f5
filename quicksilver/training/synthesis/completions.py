"""Completion rows from records of real commits: a line that is half typed at the cursor, and code that is complete.

The code is the state after the commit. Most rows have no history, so that only the code shows what is missing.
A completion is kept if nearly all of its words occur in the prompt. Complete code stays as it is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quicksilver.editing.prompts import EditRequest
from quicksilver.training.rows import EditRow
from quicksilver.training.synthesis.commits import new_words, request_of, without_context

_STOPS = re.compile(r"(?<=[\s(\[{.,:=<>!&|\"'])(?=\S)|(?<=\w)(?=\W)")
_COMMENT = re.compile(r"\s*(?:#|//|\*|/\*|--)")
_COMPLETE_SHARE = 0.35
_HISTORY_SHARE = 0.4
_LINES_ABOVE, _LINES_BELOW = 14, 10
_LONGEST_REST = 90
_MAX_NEW_WORDS = 1
_TRIES = 6


@dataclass(frozen=True, slots=True)
class Gap:
    """A half-typed line: its index, the characters that are typed, and the lines after it that are missing too."""

    line: int
    column: int
    num_missing: int


def completion_rows(record: Mapping[str, Any], rng: random.Random) -> Iterator[EditRow]:
    """One row of a record, or none where no line can be completed from what is there."""
    request = _finished(record, rng)
    if request is None:
        return
    if rng.random() < _COMPLETE_SHARE:
        yield EditRow(replace(request, cursor=_line_end(request.region, rng)), request.region, counts_copies_apart=True)
        return
    lines = request.region.split("\n")
    for _ in range(_TRIES):
        gap = _draw_gap(lines, rng)
        asked = _half_typed(request, lines, gap) if gap else None
        if asked and len(new_words(asked, request.region)) <= _MAX_NEW_WORDS:
            yield EditRow(asked, request.region, counts_copies_apart=True)
            return


def _finished(record: Mapping[str, Any], rng: random.Random) -> EditRequest | None:
    """The record after its edit, with a short region and little around it; None where there is hardly any code."""
    lines = str(record["target"]).split("\n")
    middle = rng.randrange(len(lines))
    first, last = max(0, middle - rng.randint(2, _LINES_ABOVE)), middle + 1 + rng.randint(2, _LINES_BELOW)
    region = "\n".join(lines[first:last])
    if len(region.strip()) < 40:
        return None
    has_context = rng.random() < 0.4
    before = "".join(f"{line}\n" for line in lines[:first])
    after = "".join(f"\n{line}" for line in lines[last:])
    has_history = rng.random() < _HISTORY_SHARE
    whole = request_of(record)
    return replace(
        whole,
        path=whole.path if rng.random() < 0.5 else whole.path.rpartition("/")[2],
        before=whole.before + before if has_context else before if rng.random() < 0.3 else "",
        region=region,
        after=after + whole.after if has_context else after if rng.random() < 0.3 else "",
        cursor=None,
        snippets=(),
        history=tuple(map(without_context, whole.history[-2:])) if has_history else (),
    )


def _line_end(region: str, rng: random.Random) -> int:
    """The end of a line that is not blank."""
    lines = region.split("\n")
    picked = rng.choice([i for i, line in enumerate(lines) if line.strip()])
    return sum(len(line) + 1 for line in lines[:picked]) + len(lines[picked])


def _draw_gap(lines: list[str], rng: random.Random) -> Gap | None:
    index = rng.randrange(len(lines))
    line = lines[index]
    indent = len(line) - len(line.lstrip())
    stops = [match.start() for match in _STOPS.finditer(line) if indent < match.start() < len(line.rstrip())]
    if len(line.strip()) < 8 or _COMMENT.match(line) or not stops:
        return None
    column = rng.choice(stops)
    missing = 0
    if rng.random() < 0.4:
        while missing < 3 and index + missing + 1 < len(lines) and _is_inside(lines[index + missing + 1], indent):
            missing += 1
        missing = rng.randint(0, missing)
    return Gap(index, column, missing)


def _is_inside(line: str, indent: int) -> bool:
    return bool(line.strip()) and len(line) - len(line.lstrip()) >= indent


def _half_typed(request: EditRequest, lines: list[str], gap: Gap) -> EditRequest | None:
    rest = lines[gap.line][gap.column :]
    typed = lines[gap.line][: gap.column].rstrip(" ") if gap.num_missing else lines[gap.line][: gap.column]
    if not 2 <= len(rest.strip()) <= _LONGEST_REST or not typed.strip():
        return None
    left = [*lines[: gap.line], typed]
    region = "\n".join([*left, *lines[gap.line + 1 + gap.num_missing :]])
    return replace(request, region=region, cursor=len("\n".join(left)))
