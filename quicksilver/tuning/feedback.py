"""Captured suggestions joined with feedback: lines for a KTO job. Blocking.

A suggestion is captured only for a project that has turned it on. What an editor reported about it is in the accounts
database, or without accounts in the feedback files of the home folder, by the id of the reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import InvalidRequest

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

CAPTURE, SETTING, FEEDBACK = "capture", "setting", "feedback"
# Reports need no key, so they belong to no project.
REPORTS_OWNER = ""
KINDS = ("edit", "fim")
# What an editor reported -> the label and the weight of a line.
LABELS: Mapping[str, tuple[bool, float]] = {"accept": (True, 1.0), "reject": (False, 1.0), "ignore": (False, 0.3)}
FILES = ("feedback.1.jsonl", "feedback.jsonl")


def set_capture(objects: ObjectStore, owner: str, kinds: Sequence[str]) -> None:
    """Captures these kinds of suggestions of the project from now on; none turns it off."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InvalidRequest(f"{unknown[0]!r}: suggestions are {' or '.join(KINDS)}")
    objects.put(owner, [StoredObject(SETTING, CAPTURE, orjson.dumps(sorted(set(kinds))))])


def captured_kinds(objects: ObjectStore, owner: str) -> frozenset[str]:
    stored = objects.get(owner, SETTING, CAPTURE)
    return frozenset(orjson.loads(stored.body)) if stored is not None else frozenset()


def forget_captures(objects: ObjectStore, owner: str) -> int:
    """Deletes all captured suggestions of the project; how many there were."""
    ids = objects.ids(owner, CAPTURE, "")
    for each in ids:
        objects.delete(owner, CAPTURE, each)
    return len(ids)


def read_reports(home: Path, objects: ObjectStore | None = None) -> dict[str, str]:
    """The last report about each reply, in the files and in the store."""
    reports: dict[str, tuple[int, str]] = {}
    for record in (*_file_records(home), *(_stored_records(objects) if objects is not None else ())):
        name, time, action = record.get("request_id"), record.get("time", 0), record.get("user_action")
        if action in LABELS and time >= reports.get(name, (0, ""))[0]:
            reports[name] = (time, action)
    return {name: action for name, (_, action) in reports.items()}


def _file_records(home: Path) -> Iterator[dict[str, Any]]:
    for name in FILES:
        path = home / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:
                continue


def _stored_records(objects: ObjectStore) -> Iterator[dict[str, Any]]:
    return (orjson.loads(each.body) for each in _all_of(objects, REPORTS_OWNER, FEEDBACK))


def kto_lines(objects: ObjectStore, owner: str, reports: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """A line per captured suggestion that was reported, oldest first."""
    return (line for _, line in judged_captures(objects, owner, reports))


def with_unchanged(lines: Iterable[dict[str, Any]], weight: float) -> Iterator[dict[str, Any]]:
    """The lines, and after each rejected edit its region without a change, as a desirable answer of this weight."""
    from quicksilver.editing.edit_request import parse_edit

    for line in lines:
        yield line
        if weight and "edit" in line and not line["label"]:
            region = parse_edit(line["edit"]).region
            yield {**line, "answer": region, "label": True, "weight": weight * line["weight"], "source": "unchanged"}


def judged_captures(
    objects: ObjectStore, owner: str, reports: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same with the id of each reply."""
    for reply_id, row in _captures(objects, owner):
        if reply_id in reports:
            label, weight = LABELS[reports[reply_id]]
            yield reply_id, {**row, "label": label, "weight": weight, "source": reports[reply_id]}


def _captures(objects: ObjectStore, owner: str) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((each.id, orjson.loads(each.body)) for each in _all_of(objects, owner, CAPTURE))


def _all_of(objects: ObjectStore, owner: str, kind: str) -> Iterator[StoredObject]:
    after = ""
    while found := objects.find(owner, kind, after=after, limit=200):
        yield from found
        after = found[-1].id
