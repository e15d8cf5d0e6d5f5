"""The journal of a run: lines for people, JSON lines for programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

from quicksilver.training.journal import Journal


def test_reports_and_notes_are_json_lines_and_a_resumed_run_continues_them(tmp_path: Path) -> None:
    stream = io.StringIO()
    first = Journal(tmp_path, "skill", stream)
    first.report(1, {"loss": 0.5, "rows_per_s": 12345.0})
    first.close()
    second = Journal(tmp_path, "skill", stream)
    second.note({"sample": "text"})
    second.close()
    lines = [json.loads(line) for line in (tmp_path / "skill.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "loss": 0.5, "rows_per_s": 12345.0}, {"sample": "text"}]
    assert "skill: step 1 loss 0.500 rows_per_s 12,345" in stream.getvalue()
