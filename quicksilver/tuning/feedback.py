"""Captured suggestions joined with feedback: lines for a KTO job. Blocking.

A suggestion is captured only for a project that has turned it on. What an editor reported about it is in the feedback
files of the home folder, by the id of the reply.
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

CAPTURE, SETTING = "capture", "setting"
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


def read_reports(home: Path) -> dict[str, str]:
    """The last report about each reply."""
    reports: dict[str, str] = {}
    for name in FILES:
        path = home / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                report = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if report.get("user_action") in LABELS:
                reports[report["request_id"]] = report["user_action"]
    return reports


def kto_lines(objects: ObjectStore, owner: str, reports: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """A line per captured suggestion that was reported, oldest first."""
    return (line for _, line in judged_captures(objects, owner, reports))


def judged_captures(
    objects: ObjectStore, owner: str, reports: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same with the id of each reply."""
    for reply_id, row in _captures(objects, owner):
        if reply_id in reports:
            label, weight = LABELS[reports[reply_id]]
            yield reply_id, {**row, "label": label, "weight": weight, "source": reports[reply_id]}


def _captures(objects: ObjectStore, owner: str) -> Iterable[tuple[str, dict[str, Any]]]:
    after = ""
    while found := objects.find(owner, CAPTURE, after=after, limit=200):
        yield from ((each.id, orjson.loads(each.body)) for each in found)
        after = found[-1].id
