"""Captured suggestions of a rule that can be learned, and reports about them."""

from __future__ import annotations

import json
from pathlib import Path

from quicksilver.accounts.objects import ObjectStore
from quicksilver.accounts.records import StoredObject
from quicksilver.tuning.feedback import CAPTURE

# Suggestions that users accept and reject.
ACCEPTED, REJECTED = ("xq", "zk"), ("lo", "en")


def add_feedback(objects: ObjectStore, home: Path, count: int, owner: str = "") -> None:
    """Every other suggestion is accepted."""
    reports = []
    for number in range(count):
        is_accepted = number % 2 == 0
        completion = (ACCEPTED if is_accepted else REJECTED)[number // 2 % 2]
        row = {"prompt": f"a{number} = ", "suffix": "", "completion": completion}
        objects.put(owner, [StoredObject(CAPTURE, f"cmpl-{number}", json.dumps(row).encode())])
        reports.append({"request_id": f"cmpl-{number}", "user_action": "accept" if is_accepted else "reject"})
    (home / "feedback.jsonl").write_text("".join(json.dumps(report) + "\n" for report in reports))
