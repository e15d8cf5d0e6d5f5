"""Next-edit rows from records of real commits: a history of diffs, a region with a cursor, the region after the edit.

Every record is one row. Its context varies as editors vary it: the code around the region whole, short or absent, diff
headers with and without a marker line, hunks with and without context, no path, no cursor, no history. A row keeps its
whole context if the edit would otherwise add words that do not occur in the prompt.

The cursors of the records are simulated: where nothing is to change they are always at the end of a line, and in a
half-typed line always after the last typed word. Some of them are moved to other places where users leave them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

from quicksilver.editing.prompts import EditRequest, Snippet
from quicksilver.training.rows import EditRow

REAL, PROPAGATED, HALF_TYPED, NOTHING = "next", "next_prop", "midtype", "noop"
SIMULATED = "sim_"

_WORD = re.compile(r"[A-Za-z_]\w+")
_ACCEPTED = "// User accepted prediction:\n"
_HUNK_HEAD = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@[^\n]*", re.MULTILINE)
_PREFIXED = re.compile(r"^(--- a/|\+\+\+ b/)", re.MULTILINE)
_SHORT_LINES = 12
_LONGEST_REGION = 4000
# Share of requests whose diffs are written as editors without line numbers write them.
_BARE_SHARE = 0.5
# Shares of the requests whose cursor is moved: into a finished line, and before the word that was typed last.
_INSIDE_SHARE, _BEFORE_WORD_SHARE = 0.5, 0.3
_LAST_WORD = re.compile(r"\w+\Z")


def commit_rows(record: Mapping[str, Any], rng: random.Random) -> Iterator[EditRow]:
    """The row of one record, or none where its region is too long to be asked for."""
    if len(record["region"]) > _LONGEST_REGION:
        return
    whole = with_moved_cursor(request_of(record), record["kind"], rng)
    varied = _with_other_heads(_with_less_context(whole, record["kind"], rng), rng)
    answer = str(record["target"])
    request = varied if new_words(whole, answer) == new_words(varied, answer) else whole
    if rng.random() < _BARE_SHARE:
        request = replace(request, history=tuple(map(without_context, request.history)))
    yield EditRow(request, answer, counts_copies_apart=True)


def request_of(record: Mapping[str, Any]) -> EditRequest:
    """A record as the request that an editor would send."""
    region = str(record["region"])
    row, column = record["cursor"]
    lines = region.split("\n")
    return EditRequest(
        path=str(record["path"]),
        before=f"{record['before']}\n" if record["before"] else "",
        region=region,
        after=f"\n{record['after']}" if record["after"] else "",
        cursor=sum(len(line) + 1 for line in lines[:row]) + min(column, len(lines[row])),
        snippets=tuple(Snippet(s["path"], s["text"]) for s in record["snippets"]),
        history=tuple(str(diff).strip("\n") for diff in record["history"]),
    )


def with_moved_cursor(request: EditRequest, kind: str, rng: random.Random) -> EditRequest:
    """The request with its cursor in another place of the line that was edited last, or as it is."""
    moved = None
    if kind == NOTHING and rng.random() < _INSIDE_SHARE:
        moved = end_of_change(request)
    elif kind == HALF_TYPED and request.cursor and rng.random() < _BEFORE_WORD_SHARE:
        line_start = request.region.rfind("\n", 0, request.cursor) + 1
        word = _LAST_WORD.search(request.region[line_start : request.cursor])
        moved = line_start + word.start() if word else None
    return request if moved is None else replace(request, cursor=moved)


def end_of_change(request: EditRequest) -> int | None:
    """Where the last edit of the history ends inside a line of the region; None where it ends with its line."""
    changed = request.history[-1].split("\n") if request.history else []
    old = [line[1:] for line in changed if line.startswith("-") and not line.startswith("---")]
    new = [line[1:] for line in changed if line.startswith("+") and not line.startswith("+++")]
    lines = request.region.split("\n")
    pairs = list(zip(old, new, strict=True)) if len(old) == len(new) else []
    for before, after in reversed(pairs):
        same = zip(reversed(before), reversed(after), strict=False)
        end = len(after) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], same))
        if after in lines and before != after and after[end:].strip() and after[:end].strip():
            return sum(len(line) + 1 for line in lines[: lines.index(after)]) + end
    return None


def without_context(diff: str) -> str:
    """A one-hunk diff that counts its lines from 1, without context lines and without path prefixes."""
    head, hunk, body = diff.partition("\n@@ ")
    changed = [line for line in body.split("\n")[1:] if line.startswith(("-", "+"))]
    if not hunk or not changed or _HUNK_HEAD.search(body):
        return diff
    num_old = sum(line.startswith("-") for line in changed)
    paths = _PREFIXED.sub(lambda match: match[1][:4], head)
    return "\n".join((paths, f"@@ -1,{num_old} +1,{len(changed) - num_old} @@", *changed))


def new_words(request: EditRequest, answer: str) -> set[str]:
    """Words of the answer that do not occur in the request."""
    parts = [request.before, request.region, request.after, *request.history, *(s.code for s in request.snippets)]
    return set(_WORD.findall(answer)) - {word for part in parts for word in _WORD.findall(part)}


def _with_less_context(request: EditRequest, kind: str, rng: random.Random) -> EditRequest:
    draw = rng.random()
    if draw < 0.3:
        request = replace(request, before="", after="", snippets=())
    elif draw < 0.7:
        before = request.before.splitlines(keepends=True)
        after = request.after.split("\n")[1:]
        kept, below = rng.randint(0, _SHORT_LINES), rng.randint(0, _SHORT_LINES)
        request = replace(
            request,
            before="".join(before[len(before) - kept :] if kept <= len(before) else before),
            after="".join(f"\n{line}" for line in after[:below]),
        )
    if kind in (HALF_TYPED, NOTHING) and rng.random() < 0.2:
        request = replace(request, history=())
    return request


def _with_other_heads(request: EditRequest, rng: random.Random) -> EditRequest:
    """Forms of the same request that some editors send."""
    draw = rng.random()
    if draw < 0.03 and request.history:
        request = replace(request, history=(*request.history[:-1], _ACCEPTED + request.history[-1]))
    elif draw < 0.05:
        request = replace(request, path="")
    elif draw < 0.09:
        request = replace(request, cursor=None)
    return request
