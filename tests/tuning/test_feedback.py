"""Captured suggestions joined with feedback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.records import StoredObject
from quicksilver.errors import InvalidRequest
from quicksilver.tuning.feedback import (
    CAPTURE,
    captured_kinds,
    forget_captures,
    kto_lines,
    read_reports,
    set_capture,
)


def test_capture_is_off_until_it_is_turned_on(objects: ObjectStore) -> None:
    assert captured_kinds(objects, "me") == frozenset()
    set_capture(objects, "me", ["fim", "edit", "fim"])
    assert captured_kinds(objects, "me") == {"edit", "fim"}
    assert captured_kinds(objects, "another") == frozenset()
    set_capture(objects, "me", [])
    assert captured_kinds(objects, "me") == frozenset()
    with pytest.raises(InvalidRequest, match="chat"):
        set_capture(objects, "me", ["chat"])


def report(reply_id: str, action: str) -> str:
    return json.dumps({"time": 1, "request_id": reply_id, "user_action": action}) + "\n"


def test_reported_suggestions_become_lines(objects: ObjectStore, tmp_path: Path) -> None:
    for number in range(4):
        row = {"prompt": f"p{number}", "suffix": "", "completion": "c"}
        objects.put("me", [StoredObject(CAPTURE, f"id{number}", json.dumps(row).encode())])
    (tmp_path / "feedback.1.jsonl").write_text(report("id0", "reject") + report("id1", "ignore"))
    (tmp_path / "feedback.jsonl").write_text(report("id0", "accept") + "cut of" + "\n" + report("id2", "reject"))
    lines = list(kto_lines(objects, "me", read_reports(tmp_path)))
    found = [(line["prompt"], line["label"], line["weight"], line["source"]) for line in lines]
    assert found == [("p0", True, 1.0, "accept"), ("p1", False, 0.3, "ignore"), ("p2", False, 1.0, "reject")]
    assert list(kto_lines(objects, "another", read_reports(tmp_path))) == []


def test_captures_are_deleted(objects: ObjectStore) -> None:
    objects.put("me", [StoredObject(CAPTURE, "id", b"{}")])
    assert forget_captures(objects, "me") == 1
    assert forget_captures(objects, "me") == 0
