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
    with_unchanged,
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


EDIT = "<|current_file_content|>\n<|code_to_edit|>\na = <|cursor|>1\n<|/code_to_edit|>\n<|/current_file_content|>\n"


def test_the_region_without_a_rejected_edit_is_desirable() -> None:
    edit = {"edit": EDIT, "answer": "a = 2"}
    lines = [
        {**edit, "label": True, "weight": 1.0, "source": "accept"},
        {**edit, "label": False, "weight": 0.3, "source": "ignore"},
        {"prompt": "p", "suffix": "", "completion": "c", "label": False, "weight": 1.0, "source": "reject"},
    ]
    found = list(with_unchanged(lines, 0.5))
    assert [found[0], found[1], found[3]] == lines
    assert found[2] == {"edit": EDIT, "answer": "a = 1", "label": True, "weight": 0.15, "source": "unchanged"}
    assert list(with_unchanged(lines, 0.0)) == lines


def test_captures_are_deleted(objects: ObjectStore) -> None:
    objects.put("me", [StoredObject(CAPTURE, "id", b"{}")])
    assert forget_captures(objects, "me") == 1
    assert forget_captures(objects, "me") == 0
