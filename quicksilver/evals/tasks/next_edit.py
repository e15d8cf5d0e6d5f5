"""Next edit on functions of held-out packages: earlier edits are given as history, the region must be rewritten.

Four kinds. `rename`: a name was changed at its first occurrence, and the region still has the old name. `signature` and
`repeated`: real edits whose later hunks repeat a word replacement of the first hunk, which is in the `def` lines or
elsewhere. `echo`: all edits are done and the region must be returned unchanged. `exact` covers the first three.
"""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quicksilver.editing.hunks import Hunk, hunks
from quicksilver.editing.prompts import EditRequest, edit_reply
from quicksilver.evals.data import Record, held_out_records
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Answer, Generate, Metrics, Task
from quicksilver.evals.tasks.fim import similarity

_WORD = re.compile(r"[A-Za-z_]\w*")
_LONGEST = 60
_ABOVE, _BELOW = 2, 6
_NEW_NAMES = ("payload", "record", "handle", "amount", "label", "bucket", "token", "chunk")


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    request: EditRequest
    answer: str


def cases(record: Record) -> Iterator[Case]:
    """Cases of one before-and-after pair. Random choices depend only on its name."""
    rng = random.Random(f"{record['p']}/{record['f']}/{record['q']}/{record['to']}")
    path, old, new = str(record["f"]), str(record["a"]).splitlines(), str(record["b"]).splitlines()
    if not (4 <= len(old) <= _LONGEST and 4 <= len(new) <= _LONGEST):
        return
    found = hunks(old, new)
    if len(found) > 1 and is_implied(old, found[0], found[1]):
        yield _follow_up(path, old, found)
    if case := _rename(path, new, rng):
        yield case
    if found and rng.random() < 0.25:
        yield _echo(path, new, found)


def _words(hunk: Hunk) -> tuple[set[str], set[str]]:
    """Words that were removed and words that were added."""
    old, new = (set(_WORD.findall("\n".join(lines))) for lines in (hunk.old, hunk.new))
    return old - new, new - old


def is_implied(old: Sequence[str], done: Hunk, due: Hunk) -> bool:
    """Whether the later hunk repeats a word replacement of the earlier hunk and adds no unseen word. Such an edit can
    be inferred from the history."""
    (gone, come), (gone_now, come_now) = _words(done), _words(due)
    if len(due.old) != len(due.new):
        return False
    known = come | set(_WORD.findall("\n".join(old)))
    return bool(come & come_now) and bool(gone & gone_now or not gone) and come_now <= known


def _follow_up(path: str, old: list[str], found: list[Hunk]) -> Case:
    """A case in which the first hunk is applied, and the region contains the second hunk and no other."""
    done, due = found[0], found[1]
    shift = len(done.new) - len(done.old)
    lines = [*old[: done.start], *done.new, *old[done.end :]]
    last = found[2].start + shift if len(found) > 2 else len(lines)
    start = max(done.start + len(done.new), due.start + shift - _ABOVE)
    end = min(last, due.end + shift + _BELOW)
    answer = [*lines[start : due.start + shift], *due.new, *lines[due.end + shift : end]]
    in_head = done.start <= _head_end(old)
    return _case("signature" if in_head else "repeated", path, lines, (start, end), [done], answer)


def _head_end(lines: Sequence[str]) -> int:
    """Index of the last line of the function's signature."""
    return next((i for i, line in enumerate(lines) if line.rstrip().endswith(":")), 0)


def _places(lines: Sequence[str]) -> dict[str, list[int]]:
    """Line indices of every word."""
    places: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        for word in dict.fromkeys(_WORD.findall(line)):
            places.setdefault(word, []).append(i)
    return places


def _is_local(name: str, lines: Sequence[str], places: Sequence[int]) -> bool:
    """Whether every occurrence is the same local variable: bound at its first occurrence, and never an attribute, a
    keyword argument or part of a string or comment."""
    first = lines[places[0]]
    is_bound = re.search(rf"\b{name}\b\s*[:=](?!=)|\b(?:for|as)\s+{name}\b|\bdef\b.*[(,]\s*{name}\b", first)
    text = "\n".join(lines[i] for i in places)
    is_other = re.search(rf"\.{name}\b|[(,]\s*{name}=[^=]|#.*\b{name}\b|[\"'].*\b{name}\b", text)
    return is_bound is not None and is_other is None


def _rename(path: str, lines: list[str], rng: random.Random) -> Case | None:
    places = _places(lines)
    fixed = {"self", "cls", *keyword.kwlist}
    common = sorted(word for word, at in places.items() if len(at) >= 3 and len(word) > 1 and word not in fixed)
    tried = rng.sample(common, len(common))
    old_name = next((name for name in tried if _is_local(name, lines, places[name])), None)
    free = [name for name in _NEW_NAMES if name not in places]
    if old_name is None or not free:
        return None
    new_name = rng.choice(free)
    changed = [re.sub(rf"\b{old_name}\b", new_name, line) for line in lines]
    first, second = places[old_name][:2]
    done = Hunk(first, first + 1, (lines[first],), (changed[first],))
    half = [*lines[:first], changed[first], *lines[first + 1 :]]
    start, end = max(first + 1, second - _ABOVE), min(len(lines), second + _BELOW)
    return _case("rename", path, half, (start, end), [done], changed[start:end])


def _echo(path: str, new: list[str], found: list[Hunk]) -> Case:
    shift = sum(len(hunk.new) - len(hunk.old) for hunk in found[:-1])
    at = min(found[-1].start + shift, len(new) - 1)
    start, end = max(0, at - _ABOVE), min(len(new), at + len(found[-1].new) + _BELOW)
    return _case("echo", path, new, (start, end), found[-2:], new[start:end])


def _case(
    kind: str, path: str, lines: list[str], span: tuple[int, int], done: Sequence[Hunk], answer: Sequence[str]
) -> Case:
    start, end = span
    region = "\n".join(lines[start:end])
    before, after = "".join(f"{x}\n" for x in lines[:start]), "".join(f"\n{x}" for x in lines[end:])
    history = tuple(hunk.diff(path) for hunk in done)
    request = EditRequest(path, before, region, after, cursor=0, history=history)
    return Case(kind, request, "\n".join(answer))


def load(data: Path) -> Iterable[Case]:
    """Limit each kind to twice the size of the smaller of two common kinds, so that no kind dominates."""
    by_kind: dict[str, list[Case]] = {"rename": [], "signature": [], "repeated": [], "echo": []}
    for record in held_out_records(data, "edits_python"):
        for case in cases(record):
            by_kind[case.kind].append(case)
    most = max(8, min(len(by_kind["signature"]), len(by_kind["repeated"])))
    return [case for found in by_kind.values() for case in found[: 2 * most]]


def ask(case: Case, writer: PromptBuilder) -> Generate:
    room = 48 + len(writer.encode(case.answer))
    prompt = writer.edit(case.request, room)
    return Generate(prompt.ids, room, prompt.stop, prompt.stop_ids)


def score(case: Case, answer: Answer) -> Metrics:
    found = edit_reply(case.request, answer.text)
    wanted = edit_reply(case.request, case.answer)
    exact = float(found == wanted)
    if case.kind == "echo":
        return {"echo": exact}
    return {"exact": exact, f"exact_{case.kind}": exact, "similarity": similarity(found, wanted)}


TASKS = (Task("next_edit", "edit", ("exact", "echo"), load, ask, score, 200),)
